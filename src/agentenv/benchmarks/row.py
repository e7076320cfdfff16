"""What a benchmark reports, and how samples of two contenders are taken in turn."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter, sleep
from typing import Literal

ISOLATION = "namespace"
"""What is measured where a row does not name a backend, whatever stronger one this machine has."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should reach: `ratio` or `value` at most or at least `bound`."""

    of: Literal["ratio", "value"]
    direction: Literal["<=", ">="]
    bound: float

    def met(self, value: float, ratio: float | None) -> bool | None:
        figure = ratio if self.of == "ratio" else value
        if figure is None:
            return None
        return figure <= self.bound if self.direction == "<=" else figure >= self.bound

    def __str__(self) -> str:
        return f"{self.direction} {self.bound:g}{'x' if self.of == 'ratio' else ''}"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure beside its reference of the same run; `value` is the figure that the target speaks of, in `unit`."""

    name: str
    value: float
    unit: str
    p50: float | None
    p99: float | None
    n: int
    reference: str
    reference_value: float | None
    ratio: float | None
    target: str | None
    met: bool | None
    machine: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much a benchmark does: 1.0 as published, smaller for a quick look; a count never falls below `least`."""

    factor: float = 1.0

    def count(self, published: int, least: int = 2) -> int:
        return max(least, round(published * self.factor))


def percentile(samples: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest sample that at least `share` (0-1) of all do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def machine() -> str:
    """This machine in a few words: cores, memory, kernel."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}"


def timed(action: Callable[[], object]) -> float:
    """Seconds that `action` takes."""
    begin = perf_counter()
    action()
    return perf_counter() - begin


def in_turn(
    pairs: int, ours: Callable[[], float], reference: Callable[[], float], *, warm_up: int = 3, rest: float = 0.0
) -> tuple[list[float], list[float]]:
    """`pairs` samples of each contender, ours and the reference alternating, after a warm-up that is not counted.

    `rest`: seconds before each sample, where a contender goes on working after its answer; it would slow the other.
    """

    def rested(contender: Callable[[], float]) -> float:
        if rest:
            sleep(rest)
        return contender()

    for _ in range(warm_up):
        ours()
        reference()
    samples = [(rested(ours), rested(reference)) for _ in range(pairs)]
    return [mine for mine, _ in samples], [theirs for _, theirs in samples]


def _compared(
    name: str, ours: Sequence[float], theirs: Sequence[float], *, unit: str, tail: float, reference: str, target: Target | None
) -> Row:
    mine, other = percentile(ours, 0.5), percentile(theirs, 0.5)
    return Row(
        name=name,
        value=mine,
        unit=unit,
        p50=mine,
        p99=percentile(ours, tail),
        n=len(ours),
        reference=reference,
        reference_value=other,
        ratio=mine / other,
        target=str(target) if target else None,
        met=target.met(mine, mine / other) if target else None,
        machine=machine(),
    )


def latency_row(name: str, ours: Sequence[float], theirs: Sequence[float], *, reference: str, target: Target | None) -> Row:
    """The row of a latency: samples in seconds, compared by their medians, reported in milliseconds."""
    mine, other = ([seconds * 1000 for seconds in samples] for samples in (ours, theirs))
    return _compared(name, mine, other, unit="ms", tail=0.99, reference=reference, target=target)


def rate_row(name: str, ours: Sequence[float], theirs: Sequence[float], *, unit: str, reference: str, target: Target | None) -> Row:
    """The row of a rate (samples in `unit`, more is better), compared by medians; its p99 is what 99 % of the samples reach."""
    return _compared(name, ours, theirs, unit=unit, tail=0.01, reference=reference, target=target)
