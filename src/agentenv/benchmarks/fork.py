"""What one of a hundred children costs when a running sandbox with 20 MB of files of its own is forked."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from agentenv.benchmarks.row import ISOLATION, Row, Scale, Target, latency_row
from agentenv.errors import AgentEnvError
from agentenv.sandbox import Sandbox

CHILDREN = 100
UPPER_MB = 20


def start_once() -> float:
    """Seconds that one `Sandbox.create()` takes."""
    begin = perf_counter()
    sandbox = Sandbox.create(isolation=ISOLATION)
    seconds = perf_counter() - begin
    sandbox.kill()
    return seconds


def run(scale: Scale) -> Iterator[Row]:
    """Per child, from the call to the last child answering, beside plain starts taken between the forks."""
    children = scale.count(CHILDREN, 4)
    per_child: list[float] = []
    starts: list[float] = []
    with Sandbox.create(isolation=ISOLATION) as parent:
        parent.commands.run(f"mkdir -p /data && for i in $(seq {UPPER_MB}); do head -c 1000000 /dev/urandom > /data/$i; done", check=True)
        for _ in range(scale.count(5, 2)):
            starts += [start_once() for _ in range(20)]
            begin = perf_counter()
            forked = parent.fork(children)
            per_child.append((perf_counter() - begin) / children)
            for child in forked:
                if isinstance(child, AgentEnvError):
                    raise child
                child.kill()
    yield latency_row("fork", per_child, starts, reference="one plain Sandbox.create()", target=Target("ratio", "<=", 1.5))
