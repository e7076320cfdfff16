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
        self._steps = metrics.steps.labels(name)
        self._step_seconds = metrics.step_seconds.labels(name)
        self._reset_seconds = metrics.reset_seconds.labels(name)
        self._infra_errors = metrics.infra_errors.labels(name)
        self._terminated = metrics.episodes.labels(name, "terminated")
        self._truncated = metrics.episodes.labels(name, "truncated")

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's, timed."""
        started = time.perf_counter()
        result = self.env.reset(seed=seed, options=options)
        self._reset_seconds.observe(time.perf_counter() - started)
        return result

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """As the environment's, timed and counted."""
        started = time.perf_counter()
        result = self.env.step(actions)
        self._step_seconds.observe(time.perf_counter() - started)
        self._steps.inc(self.num_envs)
        _, _, terminated, truncated, infos = result
        if terminated.any() or truncated.any() or "_infra_error" in infos:
            self._count_ends(terminated, truncated, infos)
        return result

    def _count_ends(self, terminated: NDArray[Any], truncated: NDArray[Any], infos: dict[str, Any]) -> None:
        broken = np.asarray(infos.get("_infra_error", np.zeros(self.num_envs, dtype=bool)), dtype=bool)
        self._infra_errors.inc(int(broken.sum()))
        self._terminated.inc(int((terminated & ~broken).sum()))
        self._truncated.inc(int((truncated & ~terminated & ~broken).sum()))
