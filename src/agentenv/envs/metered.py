"""Counts and times what a vector environment does, for Prometheus."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from agentenv.monitoring.metrics import EnvironmentMetrics


class MeteredVectorEnv(VectorWrapper):
    """A vector environment as it is, whose steps, episodes, faults and times (seconds of a whole batch) go to `metrics` under `name`.

    An episode that the machinery broke off counts as an infra error, not as an episode.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], metrics: EnvironmentMetrics, name: str) -> None:
        super().__init__(envs)
        self._metrics = metrics
        self._name = name

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's, timed."""
        started = time.perf_counter()
        result = self.env.reset(seed=seed, options=options)
        self._metrics.reset_seconds.labels(self._name).observe(time.perf_counter() - started)
        return result

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """As the environment's, timed and counted."""
        started = time.perf_counter()
        result = self.env.step(actions)
        self._metrics.step_seconds.labels(self._name).observe(time.perf_counter() - started)
        _, _, terminated, truncated, infos = result
        broken = np.asarray(infos.get("_infra_error", np.zeros(self.num_envs, dtype=bool)), dtype=bool)
        self._metrics.steps.labels(self._name).inc(self.num_envs)
        self._metrics.infra_errors.labels(self._name).inc(int(broken.sum()))
        self._metrics.episodes.labels(self._name, "terminated").inc(int((terminated & ~broken).sum()))
        self._metrics.episodes.labels(self._name, "truncated").inc(int((truncated & ~terminated & ~broken).sum()))
        return result
