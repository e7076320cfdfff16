"""Snapshot layers and memories: directories that are kept as long as a snapshot or a live sandbox of any process needs them.

A layer lies in `snapshots/layers/<id>/`, with one directory for each tree that it changes (see `Tree.name`), in the form that overlayfs
writes an upper in; or with one file, the disk of a virtual machine. A memory lies in `snapshots/memory/<id>/`, in whatever form its backend
gave it. Who mounts or maps one holds a shared lock on it. It never changes once it is there.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from agentenv.errors import NotFound
from agentenv.images.held import Held, claim, hold


class LayersInUse:
    """Layers that stay until `release`; `ids` and `paths` are the topmost first."""

    def __init__(self, store: LayerStore, ids: tuple[str, ...]) -> None:
        self.ids = ids
        self._store = store
        self._released = False

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self._store.directory / identifier for identifier in self.ids)

    def release(self) -> None:
        """They are not needed here any more; idempotent."""
        if not self._released:
            self._released = True
            self._store.release(self.ids)


class LayerStore:
    """The layers under `directory`. `needed` tells the ids of those that a snapshot is made of; `discard` takes a directory away."""

    def __init__(self, directory: Path, needed: Callable[[], frozenset[str]], discard: Callable[[Path], None]) -> None:
        self.directory = directory
        self._needed = needed
        self._discard = discard
        self._users: Counter[str] = Counter()
        self._held: dict[str, Held] = {}
        directory.mkdir(exist_ok=True)

    def use(self, ids: tuple[str, ...]) -> LayersInUse:
        """Keeps these layers from being removed; raises `NotFound` when one is gone already."""
        for done, identifier in enumerate(ids):
            if identifier not in self._held:
                held = hold(self.directory / identifier)
                if held is None:
                    self.release(ids[:done])
                    raise NotFound(
                        f"a part of the snapshot, {self.directory.name}/{identifier}, does not exist any more.",
                        remedy="Use another snapshot.",
                    )
                self._held[identifier] = held
            self._users[identifier] += 1
        return LayersInUse(self, ids)

    def publish(self, staging: Path, identifier: str) -> LayersInUse:
        """Moves a finished layer here, in use already; the one that is here counts where somebody put the same one before."""
        held = hold(staging)
        if held is None:
            raise NotFound(f"the layer {staging} vanished before it was complete.")
        held.directory = self.directory / identifier
        try:
            staging.rename(held.directory)
        except OSError as error:
            held.release()
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            self._discard(staging)
            return self.use((identifier,))
        self._held[identifier] = held
        self._users[identifier] += 1
        return LayersInUse(self, (identifier,))

    def release(self, ids: tuple[str, ...]) -> None:
        """Ends one use of each; a layer that nobody uses and no snapshot needs is removed."""
        for identifier in ids:
            self._users[identifier] -= 1
            if self._users[identifier] == 0:
                del self._users[identifier]
                self._held.pop(identifier).release()
                self.remove(identifier)

    def unneeded(self) -> list[str]:
        """The layers that no snapshot needs and nobody here uses; another process may still use them."""
        needed = self._needed()
        return [path.name for path in self.directory.iterdir() if path.name not in needed and path.name not in self._users]

    def remove(self, identifier: str) -> bool:
        """Removes a layer unless a snapshot needs it or somebody uses it; returns whether it did."""
        lock = claim(self.directory / identifier)
        if lock is None:
            return False
        with lock:
            # Asked with the lock in hand: whoever makes a snapshot of a layer is using it at that moment.
            if identifier in self._needed():
                return False
            self._discard(self.directory / identifier)
        return True
