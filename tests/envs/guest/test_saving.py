"""Episodes of Gymnasium's classic control and toy text go on exactly where they were, in a process that knows nothing of them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from agentenv.envs.guest.saving import portable

NAMES = [
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Acrobot-v1",
    "FrozenLake-v1",
    "Taxi-v4",
    "CliffWalking-v1",
    "Blackjack-v1",
]


def rest_of(env: Any, actions: list[Any]) -> list[Any]:
    """What the episode, and the one after it, give for these actions."""
    results: list[Any] = []
    for action in actions:
        result = env.step(action)
        results.append(result)
        if result[2] or result[3]:
            results.append(env.reset())
    return results


def flat(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [flat(item) for item in value]
    return {key: flat(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_goes_on_from_its_bytes(name: str) -> None:
    one, other = gymnasium.make(name), gymnasium.make(name)
    one.action_space.seed(3)
    actions = [one.action_space.sample() for _ in range(250)]
    one.reset(seed=5)
    rest_of(one, actions[:7])
    saver, loader = portable(one), portable(other)
    assert saver is not None
    assert loader is not None
    loader.load(saver.save())
    assert flat(rest_of(one, actions)) == flat(rest_of(other, actions))


def test_an_environment_with_hidden_state_is_left_alone() -> None:
    class Hidden(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(2)

    assert portable(Hidden()) is None
    assert portable(object()) is None


def test_a_users_own_save_works_under_gymnasiums_wrappers() -> None:
    class Own(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Discrete(100)
        action_space = gymnasium.spaces.Discrete(2)
        steps = 0

        def reset(self, **_: Any) -> tuple[int, dict[str, Any]]:
            self.steps = 0
            return 0, {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            self.steps += 1
            return self.steps, 0.0, False, False, {}

        def save(self) -> bytes:
            return str(self.steps).encode()

        def load(self, state: bytes) -> None:
            self.steps = int(state)

    one, other = (gymnasium.wrappers.TimeLimit(Own(), 5) for _ in range(2))
    one.reset()
    for _ in range(3):
        one.step(0)
    saver, loader = portable(one), portable(other)
    assert saver is not None
    assert loader is not None
    loader.load(saver.save())
    assert [other.step(0)[3], other.step(0)[3]] == [False, True]
