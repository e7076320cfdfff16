"""Environments: tasks with `reset` and `step` that live in sandboxes of their own, singly or many together, in Gymnasium's form or the
classic one.

`Environment` is what a user writes and runs inside; `SandboxEnv` and `SandboxVectorEnv` are how the outside sees it. Importing this room
loads neither numpy nor gymnasium: that happens when a name that needs them is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentenv.envs.gymnasium_ids import register_ids

if TYPE_CHECKING:
    from agentenv.envs import spaces
    from agentenv.envs.classic import AgentEnvironment
    from agentenv.envs.guest.environment import Environment
    from agentenv.envs.handle import EnvTimeouts, SandboxSettings
    from agentenv.envs.making import make
    from agentenv.envs.registry import register
    from agentenv.envs.sandbox_env import SandboxEnv
    from agentenv.envs.vector_env import SandboxVectorEnv

__all__ = [
    "AgentEnvironment",
    "EnvTimeouts",
    "Environment",
    "SandboxEnv",
    "SandboxSettings",
    "SandboxVectorEnv",
    "make",
    "register",
    "spaces",
]

_HOMES = {
    "AgentEnvironment": "classic",
    "EnvTimeouts": "handle",
    "Environment": "guest.environment",
    "SandboxEnv": "sandbox_env",
    "SandboxSettings": "handle",
    "SandboxVectorEnv": "vector_env",
    "make": "making",
    "register": "registry",
}

register_ids()


def __getattr__(name: str) -> Any:
    if name == "spaces":
        return import_module("agentenv.envs.spaces")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"agentenv.envs.{_HOMES[name]}"), name)
