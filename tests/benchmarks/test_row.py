"""The arithmetic of benchmark rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.benchmarks.catalogue import BENCHMARKS, load
from agentenv.benchmarks.density import marginal
from agentenv.benchmarks.plot import relative_to_target
from agentenv.benchmarks.row import Scale, Target, in_turn, latency_row, percentile, rate_row
from agentenv.errors import NotFound

samples = st.lists(st.floats(0.001, 1000, allow_nan=False), min_size=1, max_size=50)


@given(samples, st.floats(0.01, 1.0))
def test_percentile_is_a_sample_that_enough_do_not_exceed(values: list[float], share: float) -> None:
    result = percentile(values, share)
    assert result in values
    assert sum(value <= result for value in values) >= share * len(values) - 1e-9


def test_percentile_of_one_sample_is_that_sample() -> None:
    assert percentile([3.0], 0.99) == 3.0


def test_the_contenders_alternate_and_the_warm_up_does_not_count() -> None:
    order: list[str] = []

    def contender(name: str) -> float:
        order.append(name)
        return float(len(order))

    mine, theirs = in_turn(2, lambda: contender("a"), lambda: contender("b"), warm_up=1)
    assert order == ["a", "b"] * 3
    assert (mine, theirs) == ([3.0, 5.0], [4.0, 6.0])


def test_a_latency_is_met_by_its_ratio() -> None:
    row = latency_row("x", [0.002] * 5, [0.001] * 5, reference="r", target=Target("ratio", "<=", 1.5))
    assert (row.value, row.ratio, row.met, row.target) == (2.0, 2.0, False, "<= 1.5x")
    assert relative_to_target(row) == pytest.approx(2.0 / 1.5)


def test_a_rate_is_better_when_higher() -> None:
    row = rate_row("x", [400.0] * 5, [100.0] * 5, unit="1/s", reference="r", target=Target("ratio", ">=", 2.0))
    assert (row.ratio, row.met) == (4.0, True)
    assert relative_to_target(row) == pytest.approx(0.5)


def test_a_scale_never_falls_below_the_least() -> None:
    assert Scale(0.001).count(100, least=7) == 7
    assert Scale().count(100) == 100


def test_an_unknown_benchmark_lists_those_there_are() -> None:
    with pytest.raises(NotFound, match="start, exec"):
        load("strat")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_of_the_catalogue_can_be_loaded(name: str) -> None:
    if name in {"step", "train"}:
        pytest.importorskip("stable_baselines3")
    assert callable(load(name))


@given(st.integers(1, 10**6), st.integers(0, 10**9))
def test_one_step_of_other_programs_does_not_move_the_marginal_memory(each: int, step: int) -> None:
    points = [(alive, 10**9 + each * alive + (step if alive >= 70 else 0)) for alive in range(0, 105, 5)]
    assert each <= marginal(points)
    assert marginal([point for point in points if point[0] < 70]) == each
