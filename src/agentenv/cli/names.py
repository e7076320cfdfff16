"""Looks up the names in a configuration where they are registered, so that a typing error is found before a training starts."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from agentenv.config import Lookups
from agentenv.config.problems import Key
from agentenv.errors import NotFound
from agentenv.naming import near


def lookups() -> Lookups:
    """For `agentenv.config.load`: environments and backends, and where what training needs is installed, algorithms."""
    found: dict[Key, Callable[[str], None]] = {("environment", "name"): _environment, ("environment", "isolation"): _backend}
    if find_spec("stable_baselines3") is not None:
        found[("training", "algorithm")] = _algorithm
    return found


def _environment(name: str) -> None:
    from agentenv.envs.registry import default_registry

    default_registry().find(name)


def _backend(name: str) -> None:
    from agentenv.isolation.registry import registered

    known = ["auto", *sorted(registered())]
    if name not in known:
        hint = near(name, known)
        raise NotFound(f"there is no backend {name!r}.", remedy=f"Did you mean {hint}?" if hint else f"There are {', '.join(known)}.")


def _algorithm(name: str) -> None:
    from agentenv.train.registry import algorithm

    algorithm(name)
