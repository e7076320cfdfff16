"""The node's snapshots that the server keeps: those of paused sandboxes, and those that templates and named snapshots start from."""

from __future__ import annotations

import time
from dataclasses import dataclass

from agentenv.errors import InvalidState, NotFound
from agentenv.node import Node
from agentenv.server.catalogue import Catalogue
from agentenv.server.fleet.births import MARK
from agentenv.server.fleet.register import Register

FRESH = 60.0
"""Seconds in which a new snapshot may still be about to be written down by who took it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Removes those that nobody needs any more. One with children stays until they are gone."""

    node: Node
    catalogue: Catalogue
    register: Register

    def needed(self) -> frozenset[str]:
        """The ids of those that somebody needs."""
        return self.catalogue.snapshots_needed() | {resident.snapshot for resident in self.register if resident.snapshot is not None}

    async def discard(self, snapshot: str) -> None:
        """Removes one, unless somebody else needs it or it has children."""
        if snapshot in self.needed():
            return
        try:
            await self.node.delete_snapshot(snapshot)
        except (NotFound, InvalidState):
            return

    async def sweep(self, *, fresh: float = FRESH) -> int:
        """Removes all that this server made and that nobody needs; returns how many. Younger ones than `fresh` seconds are left alone."""
        removed = 0
        # The youngest first, so that a parent is looked at when its children are gone.
        for snapshot in reversed(await self.node.snapshots()):
            if MARK not in snapshot.metadata or snapshot.id in self.needed() or time.time() - snapshot.created < fresh:
                continue
            try:
                await self.node.delete_snapshot(snapshot.id)
            except (NotFound, InvalidState):
                continue
            removed += 1
        return removed
