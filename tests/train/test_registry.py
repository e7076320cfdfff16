"""Algorithms by name, and whether they fit."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import agentenv.train.registry as registry
from agentenv.errors import AgentEnvError, CapabilityError, NotFound
from agentenv.train import algorithm, algorithms

FEW = spaces.Discrete(3)
MANY = spaces.Box(-1.0, 1.0, (2,), np.float32)
MINE = registry.Algorithm("MINE", registry.PPO, (spaces.Discrete,), registry.ppo_plan)


def with_entry_points(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    points = [EntryPoint(name, value, registry.GROUP) for name, value in values.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == registry.GROUP else [])


def test_four_come_along_and_names_ignore_case() -> None:
    assert set(algorithms()) >= {"PPO", "A2C", "DQN", "SAC"}
    assert algorithm("ppo") is algorithm("PPO")


def test_an_unknown_name_lists_what_is_near_and_what_is_known() -> None:
    with pytest.raises(NotFound, match=r"there is no algorithm 'POP'.*Did you mean PPO.*A2C, DQN, PPO, SAC"):
        algorithm("POP")


def test_a_package_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, MINE=f"{__name__}:MINE")
    monkeypatch.setattr(EntryPoint, "load", lambda self: MINE)
    assert algorithm("mine") is MINE


def test_two_with_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, PPO="somewhere:else")
    with pytest.raises(AgentEnvError, match=r"two algorithms are called 'PPO': one of agentenv, one of somewhere:else"):
        algorithms()


def test_an_entry_point_must_name_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, ODD="json:dumps")
    with pytest.raises(AgentEnvError, match=r"'ODD' .* is function, no agentenv.train.Algorithm"):
        algorithms()


@pytest.mark.parametrize(
    ("name", "space", "others"),
    [("DQN", MANY, "PPO or A2C or SAC"), ("SAC", FEW, "PPO or A2C or DQN"), ("DQN", spaces.MultiDiscrete([2, 2]), "PPO or A2C")],
)
def test_an_algorithm_that_cannot_act_there_says_which_can(name: str, space: spaces.Space[Any], others: str) -> None:
    with pytest.raises(CapabilityError) as caught:
        registry.require_fit(algorithm(name), space)
    assert f"{name} needs " in str(caught.value)
    assert f"Use {others} here." in str(caught.value)


@pytest.mark.parametrize(("name", "space"), [("PPO", FEW), ("PPO", MANY), ("A2C", spaces.MultiBinary(3)), ("DQN", FEW), ("SAC", MANY)])
def test_an_algorithm_that_fits_is_let_pass(name: str, space: spaces.Space[Any]) -> None:
    assert registry.require_fit(algorithm(name), space) is None


def test_actions_without_limits_are_refused() -> None:
    with pytest.raises(CapabilityError, match="without finite limits"):
        registry.require_fit(algorithm("PPO"), spaces.Box(-np.inf, np.inf, (1,), np.float32))


def test_a_space_that_nothing_can_act_in_says_so() -> None:
    with pytest.raises(CapabilityError, match="No known algorithm"):
        registry.require_fit(algorithm("PPO"), spaces.Text(3))
