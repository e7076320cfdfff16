"""The same few things on every backend that this machine can use, side by side: what choosing one costs.

Latencies have the namespace backend of the same run as their reference, slow-downs the same work on this machine without a sandbox. The
backends take their samples in turn.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from time import perf_counter

from agentenv.benchmarks.density import marginal, settle, used_bytes
from agentenv.benchmarks.row import Row, Scale, machine, percentile
from agentenv.errors import AgentEnvError, BackendUnavailable, NotFound
from agentenv.images import default_image
from agentenv.isolation import Probe, probe_all
from agentenv.isolation.contract import Timeouts
from agentenv.monitoring.logs import logger
from agentenv.sandbox import Sandbox

WORK = {
    "cpu": "i=0; while [ $i -lt 1000000 ]; do i=$((i + 1)); done",
    "files": "i=0; while [ $i -lt 2000 ]; do echo $i > file; read x < file; i=$((i + 1)); done",
    "forks": "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i + 1)); done",
    "syscalls": "dd if=/dev/zero of=/dev/null bs=1 count=100000 2>/dev/null",
}
"""What is slowed down: pure computing; opening, writing, reading and closing small files; starting programs; reading and writing a byte."""

_log = logger(__name__)

UPPER_MB = 20
CHILDREN = 4
_PATIENT = Timeouts(startup=120.0)
_ALIVE_SECONDS, _ALIVE_MOST = 10.0, 200
_UNITS = {"memory": "MiB", "fork-memory": "MiB"}


class Contender:
    """One backend: the image that it is tried with, and a sandbox with some files of its own that stays for all samples."""

    def __init__(self, probe: Probe, stack: ExitStack) -> None:
        self.name = probe.backend
        self.machine = f"{machine()}, {probe.version}"
        self.image = default_image(disk=probe.capabilities.disk_image)
        self.parent = stack.enter_context(self.create())
        line = f"mkdir -p /data && cd /data && for i in $(seq {UPPER_MB}); do head -c 1000000 /dev/urandom > $i; done"
        self.parent.commands.run(line, check=True)
        self.samples: dict[str, list[float]] = {}

    def create(self) -> Sandbox:
        """One more sandbox of it."""
        return Sandbox.create(self.image, isolation=self.name, timeouts=_PATIENT)

    def work(self, line: str) -> float:
        """Seconds that a line of shell takes in the sandbox that stays."""
        return _timed(lambda: self.parent.commands.run(["sh", "-c", line], cwd="/root", check=True))

    def add(self, measure: str, value: float) -> None:
        """Notes a sample."""
        self.samples.setdefault(measure, []).append(value)


def run(scale: Scale) -> Iterator[Row]:
    """A row for each measure on each usable backend. Raises `BackendUnavailable` where there is none."""
    with ExitStack() as stack:
        contenders = list(_contenders(stack))
        if not contenders:
            raise BackendUnavailable("no backend can be used on this machine.", remedy="Run `agentenv doctor` for the whole report.")
        for measure, count in ((_start, 10), (_exec, 50), (_fork, 4), (_pause, 10)):
            for _ in range(scale.count(count, 1)):
                for one in contenders:
                    measure(one)
        host: dict[str, list[float]] = {name: [] for name in WORK}
        for _ in range(scale.count(5, 1)):
            for name, line in WORK.items():
                host[name].append(_on_the_host(line))
                for one in contenders:
                    one.add(name, one.work(line))
        for one in contenders:
            with _paused(other for other in contenders if other is not one):
                _memory(one, _ALIVE_SECONDS * scale.factor)
        reference = next((one for one in contenders if one.name == "namespace"), contenders[0])
        for measure_name in reference.samples:
            for one in contenders:
                if measure_name in WORK:
                    yield _row(measure_name, one, "this machine without a sandbox", host[measure_name])
                else:
                    yield _row(measure_name, one, reference.name, reference.samples[measure_name])


def pivot(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The rows as a table: its header, and a line for each measure with a cell for each backend."""
    backends = {row.name.partition("/")[2]: row.machine.endswith(_EMULATED) for row in rows}
    measures = list(dict.fromkeys(row.name.partition("/")[0] for row in rows))
    found = {row.name: row for row in rows}
    lines = [[TITLES[measure], *(_cell(found.get(f"{measure}/{backend}")) for backend in backends)] for measure in measures]
    return ["", *(f"{name}, emulated" if emulated else name for name, emulated in backends.items())], lines


def markdown(rows: Sequence[Row]) -> str:
    """The table with its day and its machine, as it stands in docs/backends.md."""
    header, lines = pivot(rows)
    today = datetime.now(UTC).date()
    machine_told = ", ".join(rows[0].machine.split(", ")[:3])
    table = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in (header, *lines)]
    table.insert(1, "|---" * len(header) + "|")
    return f"{today.day} {today:%B %Y}, {machine_told}:\n\n" + "\n".join(table) + "\n"


_EMULATED = "(tcg)"
"""How the version of a QEMU ends whose guests no processor runs."""

TITLES = {
    "start": "start, to the end of the first command",
    "exec": "one command",
    "fork": f"fork, each of {CHILDREN} children (with memory where there is that)",
    "pause": "pause",
    "resume": "resume",
    "cpu": "computing",
    "files": "small files",
    "forks": "starting programs",
    "syscalls": "system calls",
    "memory": "memory of one more sandbox",
    "fork-memory": "memory of one more child of a fork",
}
"""What each measure is called in the table."""


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row.name.partition("/")[0] in WORK:
        return f"{row.ratio:.2f}x"
    if row.unit == "ms" and row.value >= 1000:
        return f"{row.value / 1000:.3g} s"
    return f"{row.value:.3g} {row.unit}"


def _contenders(stack: ExitStack) -> Iterator[Contender]:
    for probe in probe_all():
        if not probe.usable:
            _log.warning("bench.left_out", backend=probe.backend, reason=probe.reason, remedy=probe.remedy)
            continue
        try:
            yield Contender(probe, stack)
        except NotFound as error:  # a virtual machine whose image nobody has built
            _log.warning("bench.left_out", backend=probe.backend, reason=error.message, remedy=error.remedy)


def _start(one: Contender) -> None:
    begin = perf_counter()
    sandbox = one.create()
    sandbox.commands.run("true")
    one.add("start", perf_counter() - begin)
    sandbox.kill()


def _exec(one: Contender) -> None:
    one.add("exec", _timed(lambda: one.parent.commands.run("true")))


def _fork(one: Contender) -> None:
    begin = perf_counter()
    children = one.parent.fork(CHILDREN)
    one.add("fork", (perf_counter() - begin) / CHILDREN)
    _end(children)


def _pause(one: Contender) -> None:
    one.add("pause", _timed(one.parent.pause))
    one.add("resume", _timed(one.parent.resume))


@contextmanager
def _paused(contenders: Iterable[Contender]) -> Iterator[None]:
    """They stand still: the kernel of a machine gives memory back for minutes after its start, which would be counted for the others."""
    with ExitStack() as stack:
        for one in contenders:
            one.parent.pause()
            stack.callback(one.parent.resume)
        yield


def _memory(one: Contender, seconds: float) -> None:
    """What one more takes of this machine's memory, started and forked; as many as come up in the time."""
    one.add("memory", _marginal(lambda stack: stack.enter_context(one.create()), seconds))

    def fork(stack: ExitStack) -> None:
        (child,) = one.parent.fork(1)
        if isinstance(child, AgentEnvError):
            raise child
        stack.enter_context(child)

    one.add("fork-memory", _marginal(fork, seconds))


def _marginal(add: Callable[[ExitStack], object], seconds: float) -> float:
    settle()
    with ExitStack() as stack:
        add(stack)  # brings up what all share
        points, begin = [(0, used_bytes())], perf_counter()
        while len(points) < 4 or (perf_counter() - begin < seconds and len(points) < _ALIVE_MOST):
            add(stack)
            points.append((len(points), used_bytes()))
        return marginal(points)


def _end(children: Sequence[Sandbox | AgentEnvError]) -> None:
    for child in children:
        if isinstance(child, AgentEnvError):
            raise child
        child.kill()


def _on_the_host(line: str) -> float:
    with tempfile.TemporaryDirectory() as place:
        return _timed(lambda: subprocess.run(["sh", "-c", line], cwd=place, check=True))


def _timed(action: Callable[[], object]) -> float:
    begin = perf_counter()
    action()
    return perf_counter() - begin


def _row(measure: str, one: Contender, reference: str, theirs: Sequence[float]) -> Row:
    unit = _UNITS.get(measure, "ms")
    factor = 1000.0 if unit == "ms" else 2.0**-20
    mine = [sample * factor for sample in one.samples[measure]]
    middle, other = percentile(mine, 0.5), percentile(theirs, 0.5) * factor
    ratio = middle / other if other > 0 else None
    return Row(
        name=f"{measure}/{one.name}",
        value=middle,
        unit=unit,
        p50=middle,
        p99=percentile(mine, 0.99),
        n=len(mine),
        reference=reference,
        reference_value=other,
        ratio=ratio,
        target=None,
        met=None,
        machine=one.machine,
    )
