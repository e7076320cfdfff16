"""What is done now and then: idle sandboxes are paused, long-paused ones removed, and what nobody needs any more is forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field

from sqlalchemy import delete

from agentenv.errors import AgentEnvError
from agentenv.monitoring.logs import logger
from agentenv.server.catalogue import Catalogue
from agentenv.server.database import Database
from agentenv.server.database.tables import SandboxRow
from agentenv.server.fleet.changes import Changes
from agentenv.server.fleet.gauges import Gauges
from agentenv.server.fleet.records import State
from agentenv.server.fleet.repeats import KEPT, Repeats
from agentenv.server.fleet.resident import Resident
from agentenv.server.settings import HistorySettings, IdleSettings
from agentenv.units import format_duration

LONGEST_NAP = 30.0
TIDYING = 600.0
"""Seconds between two removals of what is too old."""

_log = logger(__name__)


@dataclass(slots=True, eq=False)
class Housekeeping:
    """Does it from `start` to `close`."""

    changes: Changes
    catalogue: Catalogue
    database: Database
    repeats: Repeats
    gauges: Gauges
    idle: IdleSettings
    history: HistorySettings
    _closed: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _tidied: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Begins."""
        self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Ends after what is being done; idempotent."""
        self._closed.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def round(self) -> None:
        """Looks after everything once."""
        for resident in self.changes.register:
            await self._safely(self._look_after(resident))
        if time.monotonic() - self._tidied >= TIDYING:
            self._tidied = time.monotonic()
            await self._safely(self.tidy())

    async def tidy(self) -> None:
        """Removes lines, rows and snapshots that nobody needs any more."""
        before = time.time() - self.history.logs
        await self.changes.logbook.forget(before)
        await self.repeats.forget(time.time() - KEPT)
        await self.gauges.tidy()
        async with self.database.write() as session:
            await session.execute(delete(SandboxRow).where(SandboxRow.ended < before))
        await self.catalogue.write_counts()
        await self.changes.stored.sweep()

    async def _work(self) -> None:
        limits = [limit for limit in (self.idle.pause_after, self.idle.remove_after) if limit is not None]
        nap = min([LONGEST_NAP, *(limit / 4 for limit in limits)])
        while not self._closed.is_set():
            try:
                async with asyncio.timeout(nap):
                    await self._closed.wait()
            except TimeoutError:
                await self.round()

    async def _look_after(self, resident: Resident) -> None:
        pause_after, remove_after = self.idle.pause_after, self.idle.remove_after
        if resident.state is State.RUNNING and pause_after is not None and resident.idle_for() >= pause_after:
            async with resident.lock:
                if resident.state is State.RUNNING and resident.idle_for() >= pause_after:
                    await self.changes.pause(resident, f"nobody has used it for {format_duration(resident.idle_for())}")
        elif resident.state is State.PAUSED and remove_after is not None and _paused_for(resident) >= remove_after:
            async with resident.lock:
                if resident.state is State.PAUSED:
                    await self.changes.end(resident, f"it was paused for {format_duration(_paused_for(resident))}", "idle")

    async def _safely(self, work: Awaitable[None]) -> None:
        try:
            await work
        except AgentEnvError as error:
            _log.warning("server.housekeeping_failed", error=str(error))


def _paused_for(resident: Resident) -> float:
    return time.time() - resident.paused if resident.paused is not None else 0.0
