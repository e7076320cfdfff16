"""What a kernel shows of data frames and figures beside their text and pictures: data that programs can go on with.

Installed into each Python kernel at its start; nothing is imported before code of the user's has imported it. The forms are those that
`e2b-code-interpreter` reads (its `Result.data` and `Result.chart`): of a figure, the lines, points, bars, pies and
boxes that are drawn in it. It is one file and imports nothing of AgentENV, since it is copied into a template.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode

DATA, CHART = "application/vnd.agentenv.data+json", "application/vnd.agentenv.chart+json"
MOST_CELLS = 1_000_000
"""Of a larger data frame, only the text is told."""

Chart = dict[str, Any]
_UNIT = re.compile(r"\(([^()]+)\)\s*$|\[([^\[\]]+)\]\s*$")
_SAME = 1e-6


class _Formatter(BaseFormatter):
    """One that gives a dictionary, or None where it has nothing to tell."""

    _return_type = dict


class DataFormatter(_Formatter):
    """Data frames as columns."""

    format_type = Unicode(DATA)
    print_method = ObjectName("_repr_agentenv_data_")


class ChartFormatter(_Formatter):
    """Figures as what is drawn in them."""

    format_type = Unicode(CHART)
    print_method = ObjectName("_repr_agentenv_chart_")

    def pop(self, typ: object, default: object = None) -> object:
        """Keeps what it has: Matplotlib's inline backend takes figures from all formatters when it chooses how pictures are shown."""
        return default


def install(shell: Any) -> None:
    """Adds both to an IPython shell."""
    known: list[tuple[type[_Formatter], str, str, Callable[[Any], dict[str, Any] | None]]] = [
        (DataFormatter, "pandas.core.frame", "DataFrame", columns_of),
        (DataFormatter, "pandas", "DataFrame", columns_of),
        (ChartFormatter, "matplotlib.figure", "Figure", chart_of),
    ]
    formatters = shell.display_formatter.formatters
    for kind, module, name, show in known:
        mime = str(kind.class_traits()["format_type"].default())
        if mime not in formatters:
            formatters[mime] = kind(parent=shell.display_formatter)
        formatters[mime].for_type_by_name(module, name, show)


def columns_of(frame: Any) -> dict[str, list[Any]] | None:
    """A data frame's columns by name, each a list of what JSON has; None for one that is too large."""
    if frame.size > MOST_CELLS:
        return None
    return {str(name): [plain(value) for value in frame.iloc[:, place].tolist()] for place, name in enumerate(frame.columns)}


def plain(value: Any) -> Any:
    """A value as JSON has it: moments in ISO 8601, missing and infinite numbers as null, what JSON does not know as text."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (datetime, date, time)):
        # Of pandas' missing moment, which is a datetime too, no other is equal to itself.
        return value.isoformat() if value == value else None
    if isinstance(value, timedelta):
        return value.total_seconds() if value == value else None
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    text = str(value)
    return None if text in ("<NA>", "NaT") else text


def chart_of(figure: Any) -> Chart | None:
    """A figure's chart, or its charts as one superchart; None where nothing is drawn that has data."""
    charts = [chart for axes in figure.axes if not hasattr(axes, "_colorbar") if (chart := _axes(axes)) is not None]
    if len(charts) < 2:
        return charts[0] if charts else None
    heading = figure.get_suptitle() if hasattr(figure, "get_suptitle") else ""
    return {"type": "superchart", "title": heading, "elements": charts}


def _axes(axes: Any) -> Chart | None:
    """The one kind of chart that an axes shows, by what is rarest first: a bar chart may have lines, a line chart no bars."""
    for kind, read in (("pie", _pie), ("bar", _bars), ("box_and_whisker", boxes_of), ("scatter", _scatter), ("line", _lines)):
        if elements := read(axes):
            chart = {"type": kind, "title": axes.get_title(), "elements": elements}
            return chart if kind == "pie" else chart | _labels(axes) | (_scales(axes) if kind in ("scatter", "line") else {})
    return None


def _labels(axes: Any) -> Chart:
    found: Chart = {}
    for name in ("x", "y"):
        label = getattr(axes, f"get_{name}label")()
        unit = _UNIT.search(label)
        found |= {f"{name}_label": label or None, f"{name}_unit": (unit[1] or unit[2]) if unit else None}
    return found


def _scales(axes: Any) -> Chart:
    found: Chart = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        kind = kind_of(axis)
        low, high = sorted(axis.get_view_interval())
        ticks = [float(tick) for tick in axis.get_majorticklocs() if low <= tick <= high]
        labels = [str(label) for label in axis.get_major_formatter().format_ticks(ticks)]
        places = [moment(tick) for tick in ticks] if kind == "datetime" else labels if kind == "categorical" else ticks
        found |= {f"{name}_ticks": places, f"{name}_tick_labels": labels, f"{name}_scale": kind}
    return found


def _points(axes: Any, xs: Iterable[Any], ys: Iterable[Any]) -> list[list[Any]]:
    return [[place_of(axes.xaxis, x), place_of(axes.yaxis, y)] for x, y in zip(xs, ys, strict=False)]


def _name(artist: Any) -> str:
    """Its label; those that Matplotlib makes up begin with an underscore."""
    label = str(artist.get_label() or "")
    return "" if label.startswith("_") else label


def _lines(axes: Any) -> list[Chart]:
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) and line.get_transform().contains_branch(axes.transData)]
    return [{"label": _name(line), "points": _points(axes, line.get_xdata(orig=False), line.get_ydata(orig=False))} for line in lines]


def _scatter(axes: Any) -> list[Chart]:
    clouds = [one for one in axes.collections if type(one).__name__ == "PathCollection" and len(one.get_offsets())]
    return [{"label": _name(one), "points": _points(axes, *zip(*one.get_offsets().tolist(), strict=True))} for one in clouds]


def _pie(axes: Any) -> list[Chart]:
    wedges = [patch for patch in axes.patches if type(patch).__name__ == "Wedge"]
    return [{"label": _name(one), "angle": float(one.theta2 - one.theta1), "radius": float(one.r)} for one in wedges]


def _bars(axes: Any) -> list[Chart]:
    found: list[Chart] = []
    for container in axes.containers:
        if type(container).__name__ != "BarContainer":
            continue
        lying = container.orientation == "horizontal"
        axis = axes.yaxis if lying else axes.xaxis
        for bar in container.patches:
            middle = bar.get_y() + bar.get_height() / 2 if lying else bar.get_x() + bar.get_width() / 2
            value = float(bar.get_width() if lying else bar.get_height())
            found.append({"label": tick_at(axis, middle), "group": _name(container), "value": value if math.isfinite(value) else None})
    return found


@dataclass(frozen=True, slots=True)
class _Strokes:
    """All lines of an axes with boxes, turned so that boxes stand: points are (along the names, along the values)."""

    axis: Any
    lines: tuple[tuple[Any, tuple[tuple[float, float], ...]], ...]
    boxes: tuple[tuple[float, float, float, float], ...]
    """Each as left, right, bottom, top."""


def boxes_of(axes: Any) -> list[dict[str, Any]]:
    """The boxes of an axes, each with its median, quartiles, whiskers and outliers."""
    strokes = _strokes(axes, lying=False)
    # Whether whiskers go up or to the side tells how the boxes stand.
    found = [chart for box in strokes.boxes if (chart := _box(strokes, box)) is not None]
    if not found:
        strokes = _strokes(axes, lying=True)
        found = [chart for box in strokes.boxes if (chart := _box(strokes, box)) is not None]
    return found


def _strokes(axes: Any, *, lying: bool) -> _Strokes:
    def turned(points: Iterable[Sequence[float]]) -> tuple[tuple[float, float], ...]:
        return tuple((float(y), float(x)) if lying else (float(x), float(y)) for x, y in points)

    lines = tuple((line, turned(line.get_xydata().tolist())) for line in axes.get_lines())
    patches = [turned(patch.get_path().vertices.tolist()) for patch in axes.patches if type(patch).__name__ == "PathPatch"]
    outlines = [points for _, points in lines if len(points) in (5, 11)] + [points for points in patches if len(points) in (5, 6, 11, 12)]
    # An outline begins at the first quartile; half-way around it is at the third.
    boxes = tuple((min(x for x, _ in points), max(x for x, _ in points), points[0][1], points[len(points) // 2][1]) for points in outlines)
    return _Strokes(axes.yaxis if lying else axes.xaxis, lines, boxes)


def _box(strokes: _Strokes, box: tuple[float, float, float, float]) -> dict[str, Any] | None:
    left, right, bottom, top = box
    middle = (left + right) / 2
    short = [points for _, points in strokes.lines if len(points) == 2]
    whiskers = [points for points in short if all(abs(x - middle) < _SAME for x, _ in points)]
    ends = [y for points in whiskers for _, y in points]
    across = [(a, b) for a, b in short if a[1] == b[1] and left - _SAME <= a[0] < b[0] <= right + _SAME]
    medians = [a[1] for a, _ in across if bottom - _SAME <= a[1] <= top + _SAME]
    if not ends or not medians:
        return None
    inside = [value for value in medians if bottom < value < top]
    outliers = [y for points in _fliers(strokes, middle) for _, y in points]
    return {
        "label": tick_at(strokes.axis, middle),
        "min": min(ends),
        "first_quartile": bottom,
        "median": (inside or medians)[0],
        "third_quartile": top,
        "max": max(ends),
        "outliers": outliers,
    }


def _fliers(strokes: _Strokes, middle: float) -> Iterator[tuple[tuple[float, float], ...]]:
    """The points beside a box's whiskers: drawn with a marker and no line."""
    for line, points in strokes.lines:
        if points and line.get_linestyle() in ("None", "") and all(abs(x - middle) < _SAME for x, _ in points):
            yield points


def kind_of(axis: Any) -> str:
    """Moments, names, or the scale of numbers."""
    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    name = type(converter).__name__
    return "datetime" if "Date" in name or "Period" in name else "categorical" if "Category" in name else str(axis.get_scale())


def moment(number: float) -> str:
    """A number of a date axis, in ISO 8601."""
    import matplotlib.dates as dates  # it is here, since an axis of its dates is

    days, origin = timedelta(days=number), datetime.fromisoformat(dates.get_epoch())  # type: ignore[no-untyped-call]
    return (origin + days).isoformat(timespec="microseconds" if days.microseconds else "seconds")


def place_of(axis: Any, number: Any) -> Any:
    """A coordinate as its axis means it: a number, a moment or a name; None for one that is missing or infinite."""
    value = float(number)
    if not math.isfinite(value):
        return None
    kind = kind_of(axis)
    if kind == "datetime":
        return moment(value)
    if kind == "categorical":
        (name,) = axis.get_major_formatter().format_ticks([value])
        return name
    return value


def tick_at(axis: Any, place: float) -> str:
    """What is written at a place of an axis: the label of a tick that is there, or else the number."""
    ticks = list(axis.get_majorticklocs())
    near = min(range(len(ticks)), key=lambda number: abs(ticks[number] - place), default=None)
    spacing = min((abs(b - a) for a, b in itertools.pairwise(ticks)), default=1.0)
    names = axis.get_major_formatter().format_ticks(ticks)
    # Bars of several groups stand beside the tick that they share.
    written = near is not None and (abs(ticks[near] - place) < _SAME or (_named(axis) and abs(ticks[near] - place) < spacing / 2))
    return str(names[near]) if near is not None and written else f"{place:g}"


def _named(axis: Any) -> bool:
    return kind_of(axis) == "categorical" or type(axis.get_major_formatter()).__name__ == "FixedFormatter"
