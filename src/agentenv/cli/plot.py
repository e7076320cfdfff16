"""A line plot for the terminal, in braille dots (2 by 4 to a character), and a one-line sparkline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot in a braille character, by row and column (Unicode block U+2800)."""

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """`values` as one line of at most `width` bars, the lowest to the highest."""
    points = _resample(values, width)
    if not points:
        return ""
    low, high = min(points), max(points)
    span = high - low or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in points)


def plot(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """`height` lines of `width` characters: the (x, y) `points`, x ascending, with the y axis labelled; empty without points."""
    if not points or width < 16 or height < 2:
        return []
    low, high = min(y for _, y in points), max(y for _, y in points)
    if high == low:
        low, high = low - 1, high + 1
    labels = [_label(high), *[""] * (height - 2), _label(low)]
    margin = max(len(label) for label in labels)
    columns = width - margin - 2
    rows = _draw(points, (low, high), columns, height)
    return [f"{label:>{margin}} ┤{row}" for label, row in zip(labels, rows, strict=True)]


def _draw(points: Sequence[tuple[float, float]], bounds: tuple[float, float], columns: int, height: int) -> list[str]:
    low, high = bounds
    wide, tall = columns * 2, height * 4
    first, last = points[0][0], points[-1][0]
    grid = [[0] * columns for _ in range(height)]
    previous: tuple[int, int] | None = None
    for x, y in points:
        column = round((x - first) / (last - first) * (wide - 1)) if last > first else 0
        row = round((high - y) / (high - low) * (tall - 1))
        for dot_column, dot_row in _line(previous or (column, row), (column, row)):
            grid[dot_row // 4][dot_column // 2] |= _DOTS[dot_row % 4][dot_column % 2]
        previous = (column, row)
    return ["".join(chr(0x2800 + cell) for cell in line) for line in grid]


def _line(begin: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots of a straight line, both ends included."""
    (x0, y0), (x1, y1) = begin, end
    steps = max(abs(x1 - x0), abs(y1 - y0))
    if steps == 0:
        return [end]
    return [(x0 + round((x1 - x0) * step / steps), y0 + round((y1 - y0) * step / steps)) for step in range(steps + 1)]


def _resample(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values: means of equally long stretches."""
    if len(values) <= width:
        return list(values)
    edges = [index * len(values) // width for index in range(width + 1)]
    return [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(edges)]


def _label(value: float) -> str:
    return f"{value:.4g}"
