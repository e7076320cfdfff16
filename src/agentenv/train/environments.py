"""Where a training's environments come from unless the caller says otherwise: each in a sandbox of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv

from agentenv.config import EnvironmentConfig
from agentenv.envs import make
from agentenv.monitoring import EventSink

MakeEnvs = Callable[[EnvironmentConfig, int, EventSink], VectorEnv[Any, Any, Any]]
"""Opens so many environments side by side: (what, lanes, where to report) -> a vector environment."""


def sandboxed(environment: EnvironmentConfig, lanes: int, events: EventSink) -> VectorEnv[Any, Any, Any]:
    """`lanes` sandboxes with the configured environment in each. Raises `InfrastructureError` where they cannot start."""
    envs = make(environment, lanes, autoreset_mode=AutoresetMode.SAME_STEP)
    events.emit("training.environments", environment=environment.name, sandboxes=[sandbox.id for sandbox in envs.sandboxes])
    return envs
