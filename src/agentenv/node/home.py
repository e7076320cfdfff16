"""The directory of all state, AGENTENV_HOME: what lies where in it, and the lock for what concerns more than one owner.

images/      `agentenv.images.ImageStore`
snapshots/   `agentenv.node.snapshots.SnapshotStore`; in `blanks/`, `agentenv.node.blanks`
owners/<id>/ one process and its sandboxes (`agentenv.node.owner`); locked by that process for as long as it lives
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import InfrastructureError
from agentenv.images.held import Held, wait_for
from agentenv.paths import state_home


@dataclass(frozen=True, slots=True)
class Home:
    """An existing AGENTENV_HOME."""

    path: Path

    @classmethod
    def open(cls, path: Path | None = None) -> Home:
        """The home at `path`, by default this user's, made where it is missing; raises `InfrastructureError` where it cannot be."""
        home = cls((path or state_home()).absolute())
        try:
            for directory in (home.path, home.owners, home.images, home.snapshots):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InfrastructureError(
                f"AGENTENV_HOME {home.path} cannot be used: {error.strerror} ({error.filename}).",
                remedy="Set AGENTENV_HOME to a directory on a local disk that you may write to.",
            ) from error
        return home

    @property
    def owners(self) -> Path:
        return self.path / "owners"

    @property
    def images(self) -> Path:
        return self.path / "images"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    def lock(self) -> Held:
        """The right to change which owners there are; waits for whoever has it, so keep it for milliseconds only."""
        return wait_for(self.owners)
