"""How long the stages of a start (or of anything else) take: percentiles over the most recent ones."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from agentenv.errors import Stage


@dataclass(frozen=True, slots=True)
class StageSummary:
    """Percentiles of one stage in seconds, over the last `count` of all `total` that were recorded."""

    name: str
    count: int
    total: int
    p50: float
    p95: float
    p99: float
    longest: float


class StageTimings:
    """Collects stages, keeps the last `window` of each name, and sums them up. May be used from any thread."""

    def __init__(self, window: int = 1000) -> None:
        self._window = window
        self._kept: dict[str, deque[float]] = {}
        self._totals: dict[str, int] = {}
        self._lock = threading.Lock()

    def record(self, stages: Iterable[Stage]) -> None:
        """Adds the stages of one start, and their sum as the stage "total"."""
        listed = list(stages)
        with self._lock:
            for stage in [*listed, Stage("total", total_seconds(listed))]:
                self._kept.setdefault(stage.name, deque(maxlen=self._window)).append(stage.seconds)
                self._totals[stage.name] = self._totals.get(stage.name, 0) + 1

    def summary(self) -> tuple[StageSummary, ...]:
        """One summary a stage, in the order in which they were first seen, "total" last."""
        with self._lock:
            kept = {name: sorted(values) for name, values in self._kept.items()}
            totals = dict(self._totals)
        names = sorted(kept, key=lambda name: name == "total")
        return tuple(_summarise(name, kept[name], totals[name]) for name in names)


def total_seconds(stages: Iterable[Stage]) -> float:
    """How long stages took together; a stage with a dot in its name ("launch.root") is a part of the one before the dot."""
    return math.fsum(stage.seconds for stage in stages if "." not in stage.name)


def _summarise(name: str, ordered: list[float], total: int) -> StageSummary:
    p50, p95, p99 = (percentile(ordered, share) for share in (0.5, 0.95, 0.99))
    return StageSummary(name, len(ordered), total, p50, p95, p99, longest=ordered[-1])


def percentile(ordered: list[float], share: float) -> float:
    """The smallest of `ordered` (ascending, not empty) that at least `share` of them do not exceed (the nearest-rank method)."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]
