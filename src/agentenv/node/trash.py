"""Removes directories in the background: out of sight at once, off the disk a little later, and nobody waits for it but `drain`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentenv.errors import InfrastructureError
from agentenv.images.files import remove_tree
from agentenv.monitoring import EventSink
from agentenv.node import mapped
from agentenv.node.owner import Owner


def _remove_whoever_owns_it(path: Path) -> None:
    try:
        remove_tree(path)
    except InfrastructureError:
        if not mapped.may_help():
            raise
        mapped.call("remove", path)


AT_ONCE = 2
"""Removals at once: more would keep the threads busy that starts need, and be no faster on one disk."""

MOST = 512
"""Directories that wait to be removed before `room` makes those wait that would bring more."""


class Trash:
    """The directories that an owner has thrown away. What a crash leaves of them is removed with the dead owner's directory."""

    def __init__(self, owner: Owner, events: EventSink) -> None:
        self._owner = owner
        self._events = events
        self._removals: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(AT_ONCE)

    def discard(self, path: Path) -> None:
        """Takes `path` away at once and removes it later; nothing happens when it does not exist."""
        resting = self._owner.discard(path)
        if resting is not None:
            self._start(resting)

    async def empty(self) -> None:
        """Removes all that lies in the trash, also what others put there, and returns when it is gone."""
        for path in (self._owner.directory / "trash").iterdir():
            self._start(path)
        await self.drain()

    async def room(self) -> None:
        """Returns once fewer than `MOST` wait: whoever makes directories faster than they can be removed would fill the disk."""
        while len(self._removals) >= MOST:
            await asyncio.wait(self._removals, return_when=asyncio.FIRST_COMPLETED)

    async def drain(self) -> None:
        """Returns when everything thrown away so far is gone."""
        while self._removals:
            await asyncio.wait(self._removals)

    def _start(self, path: Path) -> None:
        task = asyncio.create_task(self._remove(path))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    async def _remove(self, path: Path) -> None:
        try:
            async with self._turns:
                await asyncio.to_thread(_remove_whoever_owns_it, path)
        except (InfrastructureError, OSError) as error:
            self._events.emit("node.removal_failed", path=str(path), error=str(error))
