"""What one more idle sandbox costs in memory, everything counted: processes, kernel objects, page tables and our own bookkeeping."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from statistics import median

from agentenv.benchmarks.row import Row, Scale, Target, machine
from agentenv.benchmarks.start import bubblewrap
from agentenv.sandbox import Sandbox

ALIVE = 500
REFERENCE_ALIVE = 100
STRIDE = 5
"""The memory in use is read after every so many."""


def used_bytes() -> int:
    """Memory of the whole machine that is not available to others, in bytes (/proc/meminfo)."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(fields["MemTotal"].split()[0]) - int(fields["MemAvailable"].split()[0])) * 1024


def marginal(points: Sequence[tuple[int, int]]) -> float:
    """Bytes that one more takes, from (how many are alive, bytes in use): the median of the slopes between any two points (Theil-Sen).

    What other programs of the machine take or free meanwhile is a step here and there, which moves a median hardly at all.
    """
    return median((later - earlier) / (more - fewer) for (fewer, earlier), (more, later) in combinations(points, 2))


def sandboxes(count: int) -> float:
    """Bytes for one of `count` idle sandboxes, started beside others that have brought up what all share."""
    with ExitStack() as stack:
        for _ in range(min(20, count)):
            stack.enter_context(Sandbox.create())
        points = [(0, used_bytes())]
        for alive in range(1, count + 1):
            stack.enter_context(Sandbox.create())
            if alive % STRIDE == 0:
                points.append((alive, used_bytes()))
        return marginal(points)


def bwraps(count: int) -> float:
    """Bytes for one of `count` idle shells under bubblewrap."""
    command = (*bubblewrap()[:-1], "/bin/sh", "-c", "echo ready; read forever")
    with ExitStack() as stack:
        points = [(0, used_bytes())]
        for alive in range(1, count + 1):
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert process.stdout is not None
            process.stdout.readline()
            if alive % STRIDE == 0:
                points.append((alive, used_bytes()))
        return marginal(points)


def run(scale: Scale) -> Iterator[Row]:
    """One row: MiB for each further sandbox."""
    alive = scale.count(ALIVE, 2 * STRIDE)
    theirs = bwraps(scale.count(REFERENCE_ALIVE, 2 * STRIDE)) / 2**20
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
        mine / theirs if theirs > 0 else None,
        str(target),
        target.met(mine, None),
        machine(),
    )
