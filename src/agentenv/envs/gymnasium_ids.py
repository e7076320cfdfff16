"""Makes `gymnasium.make("agentenv/basic_rl_env-v0")` work, in whichever order `gymnasium` and `agentenv.envs` are imported.

Gymnasium has no entry points for environments, and importing it takes a good part of a second, which neither the command line nor the
server inside a sandbox should pay. So the ids are registered at once where it is loaded, else at the moment when somebody loads it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

NAMESPACE: Final = "agentenv"
NAMES: Final = ("basic_rl_env",)


def register_ids() -> None:
    """Registers every built-in environment with Gymnasium, or arranges it for the time when Gymnasium is imported; idempotent."""
    if "gymnasium" in sys.modules:
        _register(sys.modules["gymnasium"])
    elif not any(isinstance(finder, _Announcer) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Announcer())


def _register(gymnasium: ModuleType) -> None:
    registry: dict[str, Any] = getattr(gymnasium, "registry", {})
    for name in NAMES:
        identifier = f"{NAMESPACE}/{name}-v0"
        if identifier not in registry and hasattr(gymnasium, "register"):
            gymnasium.register(
                identifier,
                entry_point="agentenv.envs.sandbox_env:SandboxEnv",
                vector_entry_point="agentenv.envs.vector_env:SandboxVectorEnv",
                kwargs={"name": name},
            )


class _Announcer(importlib.abc.MetaPathFinder):
    """Finds gymnasium as Python would, and registers the ids right after it has been loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Another loader, and then the registration."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _register(module)
