"""What one more idle sandbox costs in memory, everything counted: processes, kernel objects, page tables and our own bookkeeping."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from statistics import median
from time import sleep

from agentenv.benchmarks.row import ISOLATION, Row, Scale, Target, machine
from agentenv.benchmarks.start import bubblewrap
from agentenv.sandbox import Sandbox

ALIVE = 500
REFERENCE_ALIVE = 100
STRIDE = 5
"""The memory in use is read after every so many."""

_HELD = ("AnonPages", "Shmem", "KernelStack", "PageTables", "SUnreclaim", "Percpu")
_LOOK_AGAIN, _LOOKS_AT_MOST = 0.5, 60
_STILL = 256 << 10
"""Bytes: so much comes and goes on a machine that does nothing."""


def used_bytes() -> int:
    """Memory of the whole machine that programs and the kernel hold, in bytes: nobody else can have it (proc_meminfo(5)).

    Added up, and not what is missing from MemFree or MemAvailable: where there are gigabytes of cache, those are off by many sandboxes.
    """
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in _HELD) * 1024


def settle() -> None:
    """Returns when the kernel has freed what ended before: it goes on with that for seconds, which would pass for a gain of the next."""
    before = used_bytes()
    for _ in range(_LOOKS_AT_MOST):
        sleep(_LOOK_AGAIN)
        now = used_bytes()
        if now > before - _STILL:
            return
        before = now


def marginal(points: Sequence[tuple[int, int]]) -> float:
    """Bytes that one more takes, from (how many are alive, bytes in use): the median of the slopes between any two points (Theil-Sen).

    What other programs of the machine take or free meanwhile is a step here and there, which moves a median hardly at all.
    """
    return median((later - earlier) / (more - fewer) for (fewer, earlier), (more, later) in combinations(points, 2))


def sandboxes(count: int) -> float:
    """Bytes for one of `count` idle sandboxes, started beside others that have brought up what all share."""
    settle()
    with ExitStack() as stack:
        for _ in range(min(20, count)):
            stack.enter_context(Sandbox.create(isolation=ISOLATION))
        points = [(0, used_bytes())]
        for alive in range(1, count + 1):
            stack.enter_context(Sandbox.create(isolation=ISOLATION))
            if alive % STRIDE == 0:
                points.append((alive, used_bytes()))
        return marginal(points)


def bwraps(count: int) -> float:
    """Bytes for one of `count` idle shells under bubblewrap."""
    command = (*bubblewrap()[:-1], "/bin/sh", "-c", "echo ready; read forever")
    settle()
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
