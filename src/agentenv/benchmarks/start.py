"""How long from the wish for a sandbox to the end of its first command, beside bubblewrap running the same program once."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

from agentenv.benchmarks.row import ISOLATION, Row, Scale, Target, in_turn, latency_row, machine, percentile, timed
from agentenv.errors import CapabilityError, NotFound
from agentenv.sandbox import Sandbox

BWRAP = ("--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib")
BWRAP_REST = ("--symlink", "usr/lib64", "/lib64", "--dev", "/dev", "--tmpfs", "/tmp", "/bin/true")

REST = 0.03
"""Seconds between two samples."""


def bubblewrap() -> tuple[str, ...]:
    """The reference command, which ends with the program; raises `NotFound` where bubblewrap is missing, `CapabilityError` where it fails.

    In a container whose /proc is covered in part the kernel lets it mount no other; there the reference has less to do.
    """
    path = shutil.which("bwrap")
    if path is None:
        raise NotFound("bubblewrap, the reference of this benchmark, is not installed.", remedy="apt-get install bubblewrap")
    for proc in (("--proc", "/proc"), ()):
        command = (path, *BWRAP, *proc, *BWRAP_REST)
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return command
    raise CapabilityError(f"bubblewrap, the reference of this benchmark, does not work here: {tried.stderr.strip()}.")


def run(scale: Scale) -> Iterator[Row]:
    """Yields the start latency, its tail, and the share of each stage (medians, ms)."""
    command = bubblewrap()
    stages: defaultdict[str, list[float]] = defaultdict(list)

    def ours() -> float:
        begin = perf_counter()
        sandbox = Sandbox.create(isolation=ISOLATION)
        sandbox.commands.run("true")
        seconds = perf_counter() - begin
        for stage in sandbox.timings:
            stages[stage.name].append(stage.seconds)
        sandbox.kill()
        return seconds

    # What a sandbox leaves is removed after its end, and what the next one needs is made then: at nobody's expense but its own.
    mine, theirs = in_turn(scale.count(300, 10), ours, lambda: timed(lambda: subprocess.run(command, check=True)), rest=REST)
    reference = "bwrap --unshare-all ... /bin/true"
    row = latency_row("start", mine, theirs, reference=reference, target=Target("ratio", "<=", 1.0))
    yield row
    tail, half = percentile(mine, 0.99), percentile(mine, 0.5)
    target = Target("ratio", "<=", 3.0)
    yield replace(
        row,
        name="start-p99",
        value=tail * 1000,
        reference="its own p50",
        reference_value=half * 1000,
        ratio=tail / half,
        target=str(target),
        met=target.met(tail, tail / half),
    )
    for name, samples in stages.items():
        middle = percentile(samples, 0.5) * 1000
        yield Row(
            f"start/{name}",
            middle,
            "ms",
            middle,
            percentile(samples, 0.99) * 1000,
            len(samples),
            "start",
            half * 1000,
            middle / (half * 1000),
            None,
            None,
            machine(),
        )
