"""What an artefact is, and what a recipe for one must be able to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentenv.errors import BackendUnavailable

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much (0: unknown)."""


def silent(what: str, done: int, total: int) -> None:
    """The progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """A program or kernel at `path`; `origin` says in words where it came from."""

    name: str
    path: Path
    version: str
    origin: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where a recipe may work (`scratch`; a broken-off download stays there) and find files without a network (`offline`)."""

    scratch: Path
    offline: Path | None = None

    def offline_file(self, pattern: str) -> Path | None:
        """The newest file of that name in the offline directory."""
        return max(self.offline.glob(pattern), key=lambda path: path.stat().st_mtime, default=None) if self.offline else None


class Recipe(Protocol):
    """How one artefact is found and had."""

    @property
    def name(self) -> str: ...

    def inspect(self, path: Path, origin: str) -> Artefact:
        """The artefact at `path`; raises `BackendUnavailable` with the reason when it cannot be used."""
        ...

    def installed(self) -> list[tuple[Path, str]]:
        """Where the machine itself may have it, with the origin's words."""
        ...

    def kept_file(self, kept: Path) -> Path:
        """Where it lies below its directory of the store."""
        ...

    def fetch(self, places: Places, target: Path, progress: Progress) -> str:
        """Fetches it into the empty directory `target` and returns its origin. Raises `BackendUnavailable` with how to get it by hand."""
        ...


@dataclass(slots=True)
class Reasons:
    """What was tried, and why it did not work, for one message."""

    what: str
    tried: list[str] = field(default_factory=list)

    def add(self, way: str, reason: object) -> None:
        self.tried.append(f"{way}: {str(reason).rstrip('.')}")

    def error(self, remedy: str) -> BackendUnavailable:
        return BackendUnavailable(f"{self.what} cannot be had here ({'; '.join(self.tried) or 'no way is known'}).", remedy=remedy)


def variable(name: str) -> str:
    """The environment variable that names the artefact's path."""
    return f"AGENTENV_{name.upper()}"


def given_by_environment(name: str) -> Path | None:
    """The path that the environment variable of `name` names."""
    chosen = os.environ.get(variable(name))
    return Path(chosen).expanduser().absolute() if chosen else None
