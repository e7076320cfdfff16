"""Curves that grow: the browser gets new points only, never again those that it has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from nicegui import ui

from agentenv.server.fleet.archive import Sample

Point = tuple[float, float]
Unit = Literal["cores", "bytes", "count"]

PALETTE = ("#2f8fb3", "#d07a2d", "#5b9e5f", "#9a6fb5", "#c4545a", "#7c8894")
"""Of lines in one chart; legible on light and on dark ground."""


class Chart:
    """Lines over time or steps, drawn as SVG so that the page's colours hold in it."""

    def __init__(self, names: Sequence[str], *, unit: Unit = "count", over_time: bool = True, tall: bool = False) -> None:
        self._limit = 0
        self._sent = [0] * len(names)
        self.element = ui.echart(_options(names, unit, over_time=over_time), renderer="svg").classes("chart tall" if tall else "chart")

    def begin(self, lines: Sequence[Sequence[Point]]) -> None:
        """The points so far, while the page is made."""
        for series, points in zip(self.element.options["series"], lines, strict=True):
            series["data"] = [list(point) for point in points]
            # One point alone makes no line to be seen.
            series["showSymbol"] = len(points) == 1
        self._sent = [len(points) for points in lines]

    def extend(self, lines: Sequence[Sequence[Point]], *, keep: int) -> None:
        """Adds points to each line; the browser keeps the last `keep` of each."""
        if any(lines):
            ui.run_javascript(f"extendChart({self.element.id}, {json.dumps(lines)}, {keep})")


def _options(names: Sequence[str], unit: Unit, *, over_time: bool) -> dict[str, Any]:
    axis = {"axisLine": {"show": False}, "axisTick": {"show": False}, "splitLine": {"lineStyle": {"color": "#8888", "width": 0.4}}}
    return {
        "animation": False,
        "color": list(PALETTE),
        "grid": {"left": 8, "right": 14, "top": 30 if len(names) > 1 else 14, "bottom": 6, "containLabel": True},
        "legend": {"show": len(names) > 1, "top": 0, "type": "scroll"},
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": {
            **axis,
            "type": "time" if over_time else "value",
            "splitLine": {"show": False},
            "splitNumber": 3,
            "axisLabel": {"hideOverlap": True},
            "min": "dataMin",
            "max": "dataMax",
        },
        "yAxis": {
            **axis,
            "type": "value",
            "scale": unit == "count" and not over_time,
            ":axisLabel": f"axisLabel('{unit}')",
            "minInterval": 1 if unit == "count" and over_time else 0,
        },
        "series": [{"type": "line", "name": name, "data": [], "showSymbol": False, "lineStyle": {"width": 1.6}} for name in names],
    }


class UsageCharts:
    """What a sandbox uses, over time: one chart for each kind of thing."""

    FIELDS: tuple[tuple[str, str, Unit], ...] = (
        ("Cores", "cpu", "cores"),
        ("Memory", "memory", "bytes"),
        ("Storage", "storage", "bytes"),
        ("Processes", "processes", "count"),
    )

    def __init__(self, samples: Sequence[Sample], *, keep: int) -> None:
        self._keep = keep
        self._latest = samples[-1].time if samples else 0.0
        self._charts: list[tuple[str, Chart]] = []
        with ui.element("div").classes("grid four"):
            for title, field, unit in self.FIELDS:
                with ui.element("section").classes("card"):
                    ui.html(f"<h3>{title}</h3>", sanitize=False)
                    chart = Chart([title], unit=unit)
                    chart.begin([_points(samples, field)])
                    self._charts.append((field, chart))

    def show(self, samples: Sequence[Sample]) -> None:
        """Adds what has come since the last time."""
        fresh = [sample for sample in samples if sample.time > self._latest]
        if not fresh:
            return
        self._latest = fresh[-1].time
        for field, chart in self._charts:
            chart.extend([_points(fresh, field)], keep=self._keep)


def _points(samples: Sequence[Sample], field: str) -> list[Point]:
    return [(round(sample.time * 1000), getattr(sample, field)) for sample in samples]
