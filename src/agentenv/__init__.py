"""AgentENV: isolated environments for reinforcement-learning agents.

The names below are loaded when they are first used, so that importing the package is quick and brings in neither torch nor gymnasium.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentenv.config import Config, load
    from agentenv.envs import AgentEnvironment, Environment, SandboxEnv, SandboxVectorEnv, make, register
    from agentenv.errors import (
        AgentEnvError,
        BackendUnavailable,
        CapabilityError,
        CommandError,
        CommandTimeout,
        ConfigError,
        EnvironmentFault,
        EnvironmentTimeout,
        InfrastructureError,
        InvalidState,
        LimitReached,
        NotFound,
        OutOfMemory,
        ProcessLimit,
        ProtocolError,
        SandboxDied,
        SandboxFileError,
        Stage,
        StartupTimeout,
        StorageFull,
    )
    from agentenv.monitoring import TrainingMonitor
    from agentenv.sandbox import AsyncSandbox, Sandbox
    from agentenv.train.pipeline import train
    from agentenv.version import __version__

_HOMES = {
    "agentenv.config": ("Config", "load"),
    "agentenv.envs": ("AgentEnvironment", "Environment", "SandboxEnv", "SandboxVectorEnv", "make", "register"),
    "agentenv.errors": (
        "AgentEnvError",
        "BackendUnavailable",
        "CapabilityError",
        "CommandError",
        "CommandTimeout",
        "ConfigError",
        "EnvironmentFault",
        "EnvironmentTimeout",
        "InfrastructureError",
        "InvalidState",
        "LimitReached",
        "NotFound",
        "OutOfMemory",
        "ProcessLimit",
        "ProtocolError",
        "SandboxDied",
        "SandboxFileError",
        "Stage",
        "StartupTimeout",
        "StorageFull",
    ),
    "agentenv.monitoring": ("TrainingMonitor",),
    "agentenv.sandbox": ("AsyncSandbox", "Sandbox"),
    "agentenv.version": ("__version__",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AgentEnvError",
    "AgentEnvironment",
    "AsyncSandbox",
    "BackendUnavailable",
    "CapabilityError",
    "CommandError",
    "CommandTimeout",
    "Config",
    "ConfigError",
    "Environment",
    "EnvironmentFault",
    "EnvironmentTimeout",
    "InfrastructureError",
    "InvalidState",
    "LimitReached",
    "NotFound",
    "OutOfMemory",
    "ProcessLimit",
    "ProtocolError",
    "Sandbox",
    "SandboxDied",
    "SandboxEnv",
    "SandboxFileError",
    "SandboxVectorEnv",
    "Stage",
    "StartupTimeout",
    "StorageFull",
    "TrainingMonitor",
    "__version__",
    "load",
    "make",
    "register",
    "train",
]


def __getattr__(name: str) -> object:
    """Loads a public name from the module that has it."""
    if name == "train":
        # The room answers calls itself: `agentenv.train(config)`.
        return import_module("agentenv.train")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
