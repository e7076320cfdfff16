"""The snapshots of one AGENTENV_HOME: a tree of small files, each naming the layers that make up one state of a sandbox's files, and
whether its memory lies beside them.

`snapshots/tree/<id>.json` is written whole or not at all and never changes; what it names is durable before it is. Changes to the tree are
made under a lock on the directory.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from agentenv.errors import InvalidState, NotFound
from agentenv.images.files import sync_directory, write_durably
from agentenv.images.held import Held, wait_for
from agentenv.isolation.contract import Resources, RootFilesystem
from agentenv.naming import near

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ID = re.compile(r"sn[a-z2-7]{12}")


class Defaults(msgspec.Struct, frozen=True):
    """What processes get that say nothing of it, in the place of the image's own: environment, user, working directory."""

    env: Mapping[str, str] = {}
    user: str = "root"
    cwd: str = "/"

    def applied_to(self, image: RootFilesystem) -> RootFilesystem:
        """The image with these defaults."""
        return replace(image, env=self.env, user=self.user, cwd=self.cwd)


class Snapshot(msgspec.Struct, frozen=True):
    """One state of a sandbox: `layers` (ids, the topmost first) over `image`. `size` is what it added to the disk, in bytes.

    `base` tells what the image was (see `agentenv.images.fingerprint`), `trees` the mount point of each tree that may be in a layer,
    `parent` the id of the snapshot before it, `created` unix seconds. `defaults` are those of a build, and of what came of it.

    With `memory` it also holds the sandbox's processes as they were, in `snapshots/memory/<id>/`, for the `backend` that wrote it down.
    With `disk` the topmost layer is the disk of a virtual machine. `resources` and `env` are what the sandbox had then.
    """

    id: str
    name: str | None
    parent: str | None
    image: str
    base: str
    trees: Mapping[str, str]
    layers: tuple[str, ...]
    created: float
    size: int
    metadata: Mapping[str, str] = {}
    defaults: Defaults | None = None
    memory: bool = False
    backend: str | None = None
    disk: bool = False
    resources: Resources = Resources()
    env: Mapping[str, str] = {}

    @property
    def label(self) -> str:
        """Its name, or its id where it has none."""
        return self.name or self.id


def new_snapshot_id() -> str:
    """A fresh id; no name can look like one."""
    return "sn" + "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(12))


def check_name(name: str) -> None:
    """Raises `InvalidState` when a snapshot cannot be called so."""
    if not NAME.fullmatch(name) or ID.fullmatch(name):
        raise InvalidState(
            f"{name!r} cannot be a snapshot's name.",
            remedy="Use 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first, and not the form of an id.",
        )


class SnapshotTree:
    """All snapshots. Every method reads the disk anew, since other processes change it too; a snapshot that was read once is remembered."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "tree"
        self._directory.mkdir(exist_ok=True)
        self._known: dict[str, Snapshot] = {}

    def all(self) -> list[Snapshot]:
        """Every snapshot, the oldest first: a parent always before its children."""
        names = {path.name for path in self._directory.iterdir() if path.name.endswith(".json") and not path.name.startswith(".")}
        for gone in self._known.keys() - names:
            del self._known[gone]
        for name in names - self._known.keys():
            try:
                self._known[name] = msgspec.json.decode((self._directory / name).read_bytes(), type=Snapshot)
            except FileNotFoundError:
                continue
        return sorted(self._known.values(), key=lambda snapshot: (snapshot.created, snapshot.id))

    def find(self, name_or_id: str) -> Snapshot:
        """The snapshot with that name or id; raises `NotFound` with a near match."""
        snapshots = self.all()
        for snapshot in snapshots:
            if name_or_id in (snapshot.id, snapshot.name):
                return snapshot
        meant = near(name_or_id, [snapshot.label for snapshot in snapshots])
        remedy = f"Did you mean {meant!r}?" if meant else "`agentenv snapshot ls` shows those that there are."
        raise NotFound(f"there is no snapshot {name_or_id!r}.", remedy=remedy)

    def require_free(self, name: str | None) -> None:
        """Raises `InvalidState` when another snapshot has that name."""
        if name is not None and any(snapshot.name == name for snapshot in self.all()):
            raise InvalidState(f"there is a snapshot {name!r} already.", remedy="Delete it, or choose another name.")

    def add(self, snapshot: Snapshot) -> None:
        """Puts a snapshot, whose layers are in place, into the tree. Raises `InvalidState` when its name is taken or its parent gone."""
        with self._lock():
            self.require_free(snapshot.name)
            if snapshot.parent is not None and all(other.id != snapshot.parent for other in self.all()):
                raise InvalidState(f"the parent {snapshot.parent} of snapshot {snapshot.label} was deleted meanwhile.")
            write_durably(self._directory / f"{snapshot.id}.json", msgspec.to_builtins(snapshot))
            self._known[f"{snapshot.id}.json"] = snapshot

    def derive(self, parent: str, defaults: Defaults, metadata: Mapping[str, str], name: str | None) -> Snapshot:
        """Adds a snapshot with the files of `parent` and other defaults. Raises `NotFound`, `InvalidState` when the name is taken."""
        if name is not None:
            check_name(name)
        above = self.find(parent)
        snapshot = msgspec.structs.replace(
            above,
            id=new_snapshot_id(),
            name=name,
            parent=above.id,
            created=created_now(above),
            size=0,
            metadata=dict(metadata),
            memory=False,
            backend=None,
            defaults=defaults,
        )
        self.add(snapshot)
        return snapshot

    def delete(self, name_or_id: str) -> Snapshot:
        """Takes a snapshot without children out of the tree and returns it; its layers are the caller's to remove.

        Raises `NotFound`, or `InvalidState` with the children's names.
        """
        with self._lock():
            snapshot = self.find(name_or_id)
            children = [other.label for other in self.all() if other.parent == snapshot.id]
            if children:
                raise InvalidState(f"snapshot {snapshot.label} has children: {', '.join(children)}.", remedy="Delete those first.")
            (self._directory / f"{snapshot.id}.json").unlink()
            sync_directory(self._directory)
            self._known.pop(f"{snapshot.id}.json", None)
            return snapshot

    def needed_layers(self) -> frozenset[str]:
        """The ids of all layers that some snapshot is made of."""
        return frozenset(layer for snapshot in self.all() for layer in snapshot.layers)

    def needed_memories(self) -> frozenset[str]:
        """The ids of all snapshots whose memory is kept, which is what its directory is called."""
        return frozenset(snapshot.id for snapshot in self.all() if snapshot.memory)

    def needed_images(self) -> Mapping[str, str]:
        """Which image references the snapshots need, each with one that needs it."""
        return {snapshot.image: f"snapshot {snapshot.label}" for snapshot in self.all()}

    def _lock(self) -> Held:
        return wait_for(self._directory)


def created_now(parent: Snapshot | None) -> float:
    """The time for a new snapshot: now, yet after its parent even when the clock was set back."""
    now = time.time()
    return max(now, parent.created + 1e-6) if parent else now
