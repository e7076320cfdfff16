"""A vector environment's steps, episodes and faults as metrics."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from prometheus_client import CollectorRegistry

from agentenv.envs.metered import MeteredVectorEnv
from agentenv.monitoring.metrics import EnvironmentMetrics


class Broken(SyncVectorEnv):
    """Marks its second lane as lost to the machinery in every step."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        truncated = truncated | np.array([False, True])
        return observations, rewards, terminated, truncated, infos | {"_infra_error": np.array([False, True])}


def make(kind: type[SyncVectorEnv] = SyncVectorEnv) -> tuple[MeteredVectorEnv, CollectorRegistry]:
    registry = CollectorRegistry()
    envs = kind([lambda: gymnasium.make("CartPole-v1", max_episode_steps=5)] * 2)
    return MeteredVectorEnv(envs, EnvironmentMetrics(registry), "cart"), registry


def test_steps_episodes_and_times() -> None:
    envs, registry = make()
    observations, _ = envs.reset(seed=1)
    assert observations.shape == (2, 4)
    for _ in range(5):
        envs.step(np.zeros(2, dtype=int))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"agentenv_environment_{name}", {"environment": "cart", **labels})

    assert value("steps_total") == 10
    assert value("episodes_total", end="truncated") == 2
    assert value("episodes_total", end="terminated") == 0
    assert value("infra_errors_total") == 0
    assert value("step_seconds_count") == 5
    assert value("reset_seconds_count") == 1


def test_what_the_machinery_broke_off_is_no_episode() -> None:
    envs, registry = make(Broken)
    envs.reset(seed=1)
    envs.step(np.zeros(2, dtype=int))
    labels = {"environment": "cart"}
    assert registry.get_sample_value("agentenv_environment_infra_errors_total", labels) == 1
    assert registry.get_sample_value("agentenv_environment_episodes_total", labels | {"end": "truncated"}) == 0
