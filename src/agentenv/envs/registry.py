"""Names of environments: what each stands for, and which names there are.

A name is one that was registered (here, by `register`, or by an installed package in the entry-point group `agentenv.environments`), or
says itself where the environment is: `gymnasium:ID`, `module:Class`, `path.py:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from agentenv.errors import AgentEnvError, NotFound

ENTRY_POINTS: Final = "agentenv.environments"
BUILT_IN: Final = {"basic_rl_env": "agentenv.envs.guest.basic:BasicRLEnv"}


@dataclass(frozen=True, slots=True)
class Registration:
    """A name, the target it stands for, and the keyword arguments that the target gets unless the user says otherwise."""

    name: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = "register()"


class Registry:
    """A set of named environments. A name belongs to whoever took it first: taking it again is an error."""

    def __init__(self) -> None:
        self._known: dict[str, Registration] = {}

    @classmethod
    def discover(cls) -> Registry:
        """The built-in names and those of installed packages."""
        registry = cls()
        for name, target in BUILT_IN.items():
            registry.add(Registration(name, target, source="agentenv"))
        for point in entry_points(group=ENTRY_POINTS):
            registry.add(Registration(point.name, point.value, source=point.dist.name if point.dist else ENTRY_POINTS))
        return registry

    def add(self, registration: Registration) -> None:
        """Adds a name. Raises AgentEnvError when it is taken by another target, or cannot be told from a location."""
        name = registration.name
        if not name or ":" in name:
            raise AgentEnvError(f"{name!r} cannot be the name of an environment: it must not be empty or hold a colon.")
        if ":" not in registration.target:
            raise AgentEnvError(f"the target {registration.target!r} of {name!r} must be gymnasium:ID, module:Class or path.py:Class.")
        taken = self._known.setdefault(name, registration)
        if taken != registration:
            raise AgentEnvError(
                f"two environments are called {name!r}: {taken.target} ({taken.source}) and {registration.target} ({registration.source}).",
                remedy="Rename one of them.",
            )

    def names(self) -> tuple[Registration, ...]:
        """Every registration, by name."""
        return tuple(self._known[name] for name in sorted(self._known))

    def find(self, name: str) -> Registration:
        """What `name` stands for. Raises `NotFound` with near matches for a name that nobody has registered and that is no location."""
        if name in self._known:
            return self._known[name]
        source, _, member = name.rpartition(":")
        if not source:
            raise NotFound(f"there is no environment {name!r}; {self._hint(name)}")
        if not member:
            raise NotFound(f"the environment {name!r} lacks its last part; write {source}:ID or {source}:Class.")
        return Registration(name, name, source="location")

    def _hint(self, name: str) -> str:
        if name.endswith(".py") or Path(name).is_file():
            return f"write {name}:Class to name the class in the file."
        near = get_close_matches(name, self._known, n=3, cutoff=0.5) + [f"gymnasium:{match}" for match in _gymnasium_matches(name)]
        if near:
            return f"did you mean {' or '.join(near)}?"
        return f"known are {', '.join(sorted(self._known))}, gymnasium:ID, module:Class and path.py:Class."


def _gymnasium_matches(name: str) -> list[str]:
    import gymnasium

    ours = [known for known in gymnasium.registry if not known.startswith("agentenv/")]
    return get_close_matches(name, ours, n=2, cutoff=0.7)


@cache
def default_registry() -> Registry:
    """The registry of this process."""
    return Registry.discover()


def register(name: str, target: str, **options: Any) -> None:
    """Names an environment in this process: `target` is gymnasium:ID, module:Class or path.py:Class, `options` its keyword arguments.

    Raises AgentEnvError when the name is taken by something else.
    """
    default_registry().add(Registration(name, target, options))
