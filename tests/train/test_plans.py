"""From `batch_size` to an algorithm's own arguments."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.config import TrainingConfig
from agentenv.errors import ConfigError
from agentenv.train.plans import SHORTEST_ROLLOUT, a2c_plan, dqn_plan, ppo_plan, sac_plan


def training(**values: Any) -> TrainingConfig:
    return TrainingConfig(**({"algorithm": "PPO", "max_steps": 1000} | values))


def test_ppo_derives_the_rollout_from_the_batch_and_says_so() -> None:
    plan = ppo_plan(training(batch_size=1024), 8)
    assert plan.arguments == {"n_steps": 128, "batch_size": 1024}
    assert plan.steps_per_update == 1024
    assert "128 steps of each of 8 environments = 1024 samples" in plan.explanation
    assert "1 minibatch of 1024" in plan.explanation


@given(batch=st.integers(1, 4096), lanes=st.integers(1, 64))
def test_a_derived_ppo_rollout_is_the_smallest_of_whole_minibatches_that_is_long_enough(batch: int, lanes: int) -> None:
    plan = ppo_plan(training(batch_size=batch), lanes)
    n_steps = plan.arguments["n_steps"]
    assert plan.steps_per_update == n_steps * lanes
    assert plan.steps_per_update % batch == 0
    assert n_steps >= SHORTEST_ROLLOUT
    shorter = [steps for steps in range(SHORTEST_ROLLOUT, n_steps) if steps * lanes % batch == 0]
    assert shorter == []


def test_a_ppo_rollout_that_cuts_a_minibatch_is_refused_with_what_would_do() -> None:
    with pytest.raises(ConfigError, match=r"n_steps: 100 steps of each of 8 environments .* multiple of 32"):
        ppo_plan(training(batch_size=256, hyperparameters={"n_steps": 100}), 8)
    assert ppo_plan(training(batch_size=256, hyperparameters={"n_steps": 96}), 8).steps_per_update == 768


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "many"])
def test_a_rollout_length_is_a_whole_number(value: object) -> None:
    with pytest.raises(ConfigError, match="whole number above 0"):
        ppo_plan(training(hyperparameters={"n_steps": value}), 2)


def test_a2c_takes_the_batch_as_its_rollout() -> None:
    plan = a2c_plan(training(batch_size=64), 8)
    assert plan.arguments == {"n_steps": 8}
    assert plan.steps_per_update == 64
    assert a2c_plan(training(), 8).arguments == {"n_steps": 5}


def test_a2c_refuses_a_batch_that_does_not_divide_and_names_the_neighbours() -> None:
    with pytest.raises(ConfigError, match="write 63 or 66"):
        a2c_plan(training(batch_size=64), 3)
    with pytest.raises(ConfigError, match="leave n_steps out"):
        a2c_plan(training(batch_size=64, hyperparameters={"n_steps": 4}), 8)


@pytest.mark.parametrize(("lanes", "every", "updates"), [(1, 4, 1), (2, 2, 1), (4, 1, 1), (8, 1, 2), (64, 1, 16)])
def test_dqn_keeps_one_update_for_four_transitions(lanes: int, every: int, updates: int) -> None:
    plan = dqn_plan(training(), lanes)
    assert (plan.arguments["train_freq"], plan.arguments["gradient_steps"]) == (every, updates)
    assert plan.steps_per_update == 4 * updates


@given(lanes=st.integers(1, 64))
def test_sac_keeps_one_update_for_each_transition(lanes: int) -> None:
    plan = sac_plan(training(batch_size=100), lanes)
    assert plan.arguments == {"batch_size": 100, "train_freq": 1, "gradient_steps": lanes}


def test_a_configured_frequency_is_taken_as_it_is() -> None:
    plan = sac_plan(training(hyperparameters={"train_freq": [2, "step"], "gradient_steps": -1}), 4)
    assert plan.arguments["train_freq"] == (2, "step")
    assert "as many optimiser steps as transitions" in plan.explanation
