"""What the code interpreter's kernels tell of figures and data frames, as `e2b-code-interpreter` reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from agentenv.templates.recipes.code_interpreter.kernel.agentenv_kernel import CHART, DATA, install

charts = pytest.importorskip("e2b_code_interpreter.charts", reason="no e2b-code-interpreter")
pytest.importorskip("matplotlib", reason="no matplotlib").use("Agg")
pandas = pytest.importorskip("pandas", reason="no pandas")


@pytest.fixture
def plot() -> Iterator[Any]:
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


@pytest.fixture(scope="module")
def formatters() -> dict[str, Any]:
    """Those of an IPython shell after the kernel's start."""
    from IPython.core.formatters import DisplayFormatter

    shell = SimpleNamespace(display_formatter=DisplayFormatter())
    install(shell)
    return dict(shell.display_formatter.formatters)


def read(formatters: dict[str, Any], figure: Any) -> Any:
    """The chart as the client has it, after its way as JSON."""
    told = formatters[CHART](figure)
    return charts._deserialize_chart(json.loads(json.dumps(told, allow_nan=False)))


def test_lines_with_units_names_and_gaps(plot: Any, formatters: dict[str, Any]) -> None:
    figure, axes = plot.subplots()
    axes.plot([1, 2, 3], [4, float("nan"), 6], label="speed")
    axes.axhline(5)
    axes.set(title="Run", xlabel="Time (s)", ylabel="Speed", yscale="log")
    chart = read(formatters, figure)
    assert (chart.type, chart.title, chart.x_label, chart.x_unit, chart.y_unit) == ("line", "Run", "Time (s)", "s", None)
    assert (chart.x_scale, chart.y_scale) == ("linear", "log")
    assert [(one.label, one.points) for one in chart.elements] == [("speed", [(1.0, 4.0), (2.0, None), (3.0, 6.0)])]
    assert len(chart.x_ticks) == len(chart.x_tick_labels) > 0


def test_moments_and_names_at_the_axes(plot: Any, formatters: dict[str, Any]) -> None:
    figure, axes = plot.subplots()
    axes.scatter([datetime(2026, 1, 1), datetime(2026, 1, 2)], ["low", "high"])
    chart = read(formatters, figure)
    assert (chart.type, chart.x_scale, chart.y_scale) == ("scatter", "datetime", "categorical")
    assert chart.elements[0].points == [("2026-01-01T00:00:00", "low"), ("2026-01-02T00:00:00", "high")]
    assert chart.x_ticks[0].startswith("2026-01-01T")


@pytest.mark.parametrize("lying", [False, True])
def test_bars_of_groups(plot: Any, formatters: dict[str, Any], lying: bool) -> None:
    figure, axes = plot.subplots()
    for label, values in (("old", [1, 2]), ("new", [3, 4])):
        (axes.barh if lying else axes.bar)(["a", "b"], values, label=label)
    told = [(bar.label, bar.group, bar.value) for bar in read(formatters, figure).elements]
    assert told == [("a", "old", 1.0), ("b", "old", 2.0), ("a", "new", 3.0), ("b", "new", 4.0)]


def test_a_pie(plot: Any, formatters: dict[str, Any]) -> None:
    figure, axes = plot.subplots()
    axes.pie([1, 3], labels=["x", "y"])
    chart = read(formatters, figure)
    assert [(one.label, round(one.angle), one.radius) for one in chart.elements] == [("x", 90, 1.0), ("y", 270, 1.0)]


@pytest.mark.parametrize("options", [{}, {"orientation": "horizontal"}, {"patch_artist": True, "notch": True}])
def test_boxes_with_whiskers(plot: Any, formatters: dict[str, Any], options: dict[str, Any]) -> None:
    figure, axes = plot.subplots()
    axes.boxplot([[1, 2, 3, 4, 5, 20], [2, 2, 4, 6]], **options)
    (axes.set_yticks if "orientation" in options else axes.set_xticks)([1, 2], ["one", "two"])
    chart = read(formatters, figure)
    first, second = chart.elements
    assert chart.type == "box_and_whisker"
    assert (first.label, first.min, first.first_quartile, first.median, first.third_quartile) == ("one", 1.0, 2.25, 3.5, 4.75)
    assert (first.max, first.outliers) == (5.0, [20.0])
    assert (second.label, second.min, second.median, second.max, second.outliers) == ("two", 2.0, 3.0, 6.0, [])


def test_several_charts_in_one_figure(plot: Any, formatters: dict[str, Any]) -> None:
    figure, (left, right) = plot.subplots(1, 2)
    figure.suptitle("Both")
    left.plot([1, 2])
    right.bar(["a"], [1])
    chart = read(formatters, figure)
    assert (chart.type, chart.title, [one.type for one in chart.elements]) == ("superchart", "Both", ["line", "bar"])
    assert formatters[CHART](plot.figure()) is None, "nothing is drawn"


def test_a_data_frame_is_columns_of_plain_data(formatters: dict[str, Any]) -> None:
    frame = pandas.DataFrame(
        {
            "n": [1, 2],
            "x": [0.5, float("nan")],
            "when": [pandas.Timestamp("2026-01-02 03:04"), pandas.NaT],
            "took": pandas.to_timedelta([90, None], unit="s"),
            "text": ["a", None],
            7: [{"k": 1}, (1, 2)],
        }
    )
    told = json.loads(json.dumps(formatters[DATA](frame), allow_nan=False))
    assert told == {
        "n": [1, 2], "x": [0.5, None], "when": ["2026-01-02T03:04:00", None], "took": [90.0, None], "text": ["a", None],
        "7": [{"k": 1}, [1, 2]],
    }  # fmt: skip
    assert formatters[DATA](pandas.DataFrame({"n": range(1_000_001)})) is None, "too large"
    assert formatters[DATA]([1]) is None
