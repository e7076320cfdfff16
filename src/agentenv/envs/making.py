"""`make`: an environment by its name or from a configuration, alone or many together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

from agentenv.config import Config, EnvironmentConfig, load
from agentenv.envs.opening import settings_of, timeouts_of
from agentenv.envs.sandbox_env import SandboxEnv
from agentenv.envs.vector_env import SandboxVectorEnv

Source = str | Path | Mapping[str, Any] | Config | EnvironmentConfig


@overload
def make(source: Source, num_envs: None = None, **arguments: Any) -> SandboxEnv: ...


@overload
def make(source: Source, num_envs: int, **arguments: Any) -> SandboxVectorEnv: ...


def make(source: Source, num_envs: int | None = None, **arguments: Any) -> SandboxEnv | SandboxVectorEnv:
    """One environment, or with `num_envs` so many together.

    `source` is an environment's name, or a configuration: a path that ends in .yaml or .yml, a mapping, a loaded `Config` or its
    `environment`. `arguments` are those of `SandboxEnv` or `SandboxVectorEnv`, and win over the configuration.
    """
    name, configured = _name_and_arguments(source)
    wanted = {**configured, **arguments}
    return SandboxEnv(name, **wanted) if num_envs is None else SandboxVectorEnv(name, num_envs, **wanted)


def _name_and_arguments(source: Source) -> tuple[str, dict[str, Any]]:
    if isinstance(source, str) and not source.endswith((".yaml", ".yml")):
        return source, {}
    config = source if isinstance(source, (Config, EnvironmentConfig)) else load(source)
    environment = config.environment if isinstance(config, Config) else config
    return environment.name, {"options": environment.options, "settings": settings_of(environment), "timeouts": timeouts_of(environment)}
