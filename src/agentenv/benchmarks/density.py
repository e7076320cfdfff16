"""What one more idle sandbox costs in memory, everything counted: processes, kernel objects, page tables and our own bookkeeping."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from agentenv.benchmarks.row import Row, Scale, Target, machine
from agentenv.benchmarks.start import bubblewrap
from agentenv.sandbox import Sandbox

ALIVE = 500
REFERENCE_ALIVE = 100


def used_bytes() -> int:
    """Memory of the whole machine that is not available to others, in bytes (/proc/meminfo)."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(fields["MemTotal"].split()[0]) - int(fields["MemAvailable"].split()[0])) * 1024


def sandboxes(count: int) -> float:
    """Bytes for one of `count` idle sandboxes, started beside others that have brought up what all share."""
    with ExitStack() as stack:
        for _ in range(min(20, count)):
            stack.enter_context(Sandbox.create())
        before = used_bytes()
        for _ in range(count):
            stack.enter_context(Sandbox.create())
        return (used_bytes() - before) / count


def bwraps(count: int) -> float:
    """Bytes for one of `count` idle shells under bubblewrap."""
    command = (*bubblewrap()[:-1], "/bin/sh", "-c", "echo ready; read forever")
    with ExitStack() as stack:
        before = used_bytes()
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert process.stdout is not None
            process.stdout.readline()
        return (used_bytes() - before) / count


def run(scale: Scale) -> Iterator[Row]:
    """One row: MiB for each further sandbox."""
    alive = scale.count(ALIVE, 50)
    theirs = bwraps(scale.count(REFERENCE_ALIVE, 20)) / 2**20
    mine = sandboxes(alive) / 2**20
    target = Target("value", "<=", 1.0)
    yield Row(
        "density",
        mine,
        "MiB",
        mine,
        None,
        alive,
        "an idle sh under bwrap",
        theirs,
        mine / theirs,
        str(target),
        target.met(mine, None),
        machine(),
    )
