"""Sandboxes that are paused to the disk: written down with their memory, so that nothing of them runs and any process can let them go on.

`snapshots/hibernated/<sandbox id>/record.json` has all that is needed; what it names is durable before it is. Who lets one go on, or
ends it, holds the exclusive lock of that directory meanwhile.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from agentenv.errors import InvalidState, NotFound, Stage
from agentenv.images.files import sync_directory, write_durably
from agentenv.images.held import Held, claim
from agentenv.isolation.contract import Exit, OomKill, Resources, Usage
from agentenv.node.records import SandboxRecord, SandboxRequest
from agentenv.node.snapshots import Snapshot

HIBERNATED: Final = "hibernated"
"""The state of such a sandbox."""

_RECORD = "record.json"


class Hibernated(msgspec.Struct, frozen=True):
    """One such sandbox. `snapshot` is what it goes on from, which is in no tree; `lifetime` the seconds that it has left from then on."""

    id: str
    generation: int
    created: float
    lifetime: float | None
    request: SandboxRequest
    snapshot: Snapshot


class HibernatedStore:
    """All of them in one AGENTENV_HOME. Every method reads the disk anew, since other processes change it too."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(exist_ok=True)

    def all(self) -> list[Hibernated]:
        """Each that is whole, in no order."""
        return [record for path in self._directory.iterdir() if (record := self.find(path.name)) is not None]

    def find(self, identifier: str) -> Hibernated | None:
        """The one with that sandbox id; None when there is none."""
        try:
            return msgspec.json.decode((self._directory / identifier / _RECORD).read_bytes(), type=Hibernated)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def holds(self, identifier: str) -> bool:
        """Whether there is one with that id; as quick as can be."""
        return (self._directory / identifier / _RECORD).exists()

    def add(self, record: Hibernated) -> None:
        """Writes one down; all that it names is in its place. Raises OSError, and then there is none."""
        place = self._directory / record.id
        place.mkdir()
        try:
            write_durably(place / _RECORD, msgspec.to_builtins(record))
            sync_directory(self._directory)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    def claim(self, identifier: str) -> tuple[Hibernated, Held]:
        """The right to let it go on or to end it. Raises `NotFound` when it is gone, `InvalidState` when another has that right now."""
        if not self.holds(identifier):
            raise NotFound(f"sandbox {identifier} is not paused to the disk any more.", remedy="`agentenv ls` shows those that there are.")
        lock = claim(self._directory / identifier)
        record = self.find(identifier)
        if lock is None or record is None:
            if lock is not None:
                lock.release()
            raise InvalidState(f"another process is letting sandbox {identifier} go on, or ending it.", remedy="Try again in a moment.")
        return record, lock

    def remove(self, identifier: str) -> None:
        """Forgets it; what it named is the caller's to remove, who holds the right to."""
        place = self._directory / identifier
        with suppress(FileNotFoundError):
            (place / _RECORD).unlink()
        shutil.rmtree(place, ignore_errors=True)

    def needed_layers(self) -> frozenset[str]:
        """The ids of the layers that they are made of."""
        return frozenset(layer for record in self.all() for layer in record.snapshot.layers)

    def needed_memories(self) -> frozenset[str]:
        """The ids of their memories."""
        return frozenset(record.snapshot.id for record in self.all())

    def needed_images(self) -> Mapping[str, str]:
        """Which image references they need, each with one that needs it."""
        return {record.snapshot.image: f"sandbox {record.id}" for record in self.all()}

    def records(self) -> list[SandboxRecord]:
        """Each as lists of sandboxes show it; none has an owner."""
        return [
            SandboxRecord(
                id=one.id,
                owner="",
                owner_pid=0,
                generation=one.generation,
                state=HIBERNATED,
                image=one.request.image or one.snapshot.image,
                backend=one.snapshot.backend or "",
                created=one.created,
                expires=None,
                metadata=one.request.metadata,
                directory=self._directory / one.id,
                snapshot=one.snapshot.parent,
            )
            for one in self.all()
        ]


class NoMachine:
    """The machine of a hibernated sandbox: there is none."""

    passes_descriptors = False
    stages: tuple[Stage, ...] = ()

    def __init__(self, identifier: str) -> None:
        self.id = identifier

    def dial(self) -> socket.socket:
        self._refuse()

    async def pause(self) -> None:
        self._refuse()

    async def resume(self) -> None:
        self._refuse()

    async def resize(self, resources: Resources) -> None:
        self._refuse()

    async def usage(self) -> Usage:
        self._refuse()

    async def oom_kills(self) -> tuple[OomKill, ...]:
        return ()

    async def process_limit_hits(self) -> int:
        return 0

    async def kill(self) -> Exit:
        return await self.wait()

    async def wait(self) -> Exit:
        return Exit(None, None, "it is paused to the disk")

    def _refuse(self) -> NoReturn:
        raise hibernated(self.id)


def hibernated(identifier: str) -> InvalidState:
    """The error for what a hibernated sandbox cannot do."""
    return InvalidState(f"sandbox {identifier} is paused to the disk.", remedy="Call `resume()` first.")
