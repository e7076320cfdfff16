"""Learning-rate schedules: their ends, their limits and their direction, whatever the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.config import ScheduleConfig
from agentenv.train import LearningRate

RATES = st.floats(1e-6, 1.0)
STEPS = st.integers(1, 10**7)


def schedule(kind: Any, initial: float, final: float = 0.0, warmup: float = 0.0) -> ScheduleConfig:
    return ScheduleConfig(schedule=kind, initial=initial, final=final, warmup=warmup)


@given(rate=RATES, steps=STEPS, progress=st.floats(-0.5, 1.0))
def test_a_number_is_the_rate_at_every_step(rate: float, steps: int, progress: float) -> None:
    assert LearningRate(rate, steps)(progress) == rate


@given(
    kind=st.sampled_from(["constant", "linear", "cosine"]),
    initial=RATES,
    final=st.floats(0.0, 1.0),
    warmup=st.floats(0.0, 0.99),
    steps=STEPS,
    at=st.floats(-1.0, 2.0),
)
def test_a_rate_never_leaves_the_range_that_its_setting_spans(
    kind: str, initial: float, final: float, warmup: float, steps: int, at: float
) -> None:
    rate = LearningRate(schedule(kind, initial, final, warmup), steps)
    low = 0.0 if warmup else min(initial, final)
    assert low - 1e-12 <= rate.at(at * steps) <= max(initial, final) + 1e-12


@given(kind=st.sampled_from(["linear", "cosine"]), initial=RATES, final=RATES, steps=STEPS)
def test_a_schedule_begins_at_initial_and_ends_at_final(kind: str, initial: float, final: float, steps: int) -> None:
    rate = LearningRate(schedule(kind, initial, final), steps)
    assert rate.at(0) == pytest.approx(initial)
    assert rate.at(steps) == pytest.approx(final)
    assert rate.at(10 * steps) == pytest.approx(final)


@given(
    kind=st.sampled_from(["linear", "cosine"]),
    initial=RATES,
    warmup=st.floats(0.0, 0.9),
    fractions=st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
)
def test_a_rate_falls_after_the_warm_up_and_rises_within_it(
    kind: str, initial: float, warmup: float, fractions: tuple[float, float]
) -> None:
    steps = 10_000
    rate = LearningRate(schedule(kind, initial, 0.0, warmup), steps)
    peak = round(warmup * steps)
    earlier, later = sorted(fractions)
    assert rate.at(peak * earlier) <= rate.at(peak * later) + 1e-12
    after = [peak + (steps - peak) * fraction for fraction in (earlier, later)]
    assert rate.at(after[0]) >= rate.at(after[1]) - 1e-12


def test_a_warm_up_counts_steps_or_a_fraction() -> None:
    counted = LearningRate(ScheduleConfig(schedule="constant", initial=1.0, warmup=100), 1000)
    assert [counted.at(step) for step in (0, 50, 100, 900)] == [0.0, 0.5, 1.0, 1.0]
    fraction = LearningRate(ScheduleConfig(schedule="constant", initial=1.0, warmup=0.1), 1000)
    assert fraction.at(50) == counted.at(50)


def test_cosine_is_half_way_in_the_middle_and_slow_at_both_ends() -> None:
    rate = LearningRate(schedule("cosine", 1.0), 1000)
    assert rate.at(500) == pytest.approx(0.5)
    assert rate.at(0) - rate.at(100) == pytest.approx(rate.at(900) - rate.at(1000))
    assert rate.at(0) - rate.at(100) < rate.at(450) - rate.at(550)


def test_the_learners_form_counts_progress_down() -> None:
    rate = LearningRate(schedule("linear", 1.0), 1000)
    assert rate(1.0) == 1.0
    assert rate(0.25) == pytest.approx(0.25)
    assert rate(0.0) == 0.0


def test_it_describes_itself() -> None:
    assert LearningRate(0.001, 10).describe() == "constant 0.001"
    assert (
        LearningRate(schedule("cosine", 0.001, 0.0001, 0.05), 1000).describe() == "cosine from 0.001 to 0.0001 after a warm-up of 50 steps"
    )
