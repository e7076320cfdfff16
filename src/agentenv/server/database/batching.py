"""Writes rows behind the caller's back, many at a time: for what must not slow a request down and may be late by a moment."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert

from agentenv.errors import InfrastructureError
from agentenv.monitoring.logs import logger
from agentenv.server.database.database import Database
from agentenv.server.database.tables import Base

MOST_WAITING = 20_000
"""Rows that wait at most; while the database does not answer, the oldest beyond are given up."""
AT_ONCE = 500
GATHERING = 0.1
"""Seconds for which rows are gathered before they are written, unless somebody waits for them."""
PATIENCE = 1.0
"""Seconds between two attempts while the database does not answer."""

_log = logger(__name__)


class BatchWriter:
    """Inserts rows into one table, in order. `flush` waits until all that was added before is in the table."""

    def __init__(self, database: Database, table: type[Base]) -> None:
        self._database = database
        self._name = table.__tablename__
        self._insert = insert(table)
        self._waiting: deque[Mapping[str, Any]] = deque(maxlen=MOST_WAITING)
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._write_all())

    def add(self, row: Mapping[str, Any]) -> None:
        """Has the row written soon. What no database takes in a text is replaced there."""
        self._waiting.append({name: _clean(value) for name, value in row.items()})
        self._idle.clear()
        self._news.set()

    async def flush(self) -> None:
        """Returns when nothing waits any more."""
        if not self._task.done():
            self._hurry.set()
            await self._idle.wait()

    async def close(self) -> None:
        """Writes what waits, one attempt, and ends; idempotent."""
        self._closing = True
        self._hurry.set()
        self._news.set()
        await asyncio.wait({self._task})

    async def _write_all(self) -> None:
        while not (self._closing and not self._waiting):
            await self._news.wait()
            self._news.clear()
            await self._gather()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), AT_ONCE))]
                if not await self._write(batch):
                    if self._closing:
                        self._waiting.clear()
                        break
                    self._waiting.extendleft(reversed(batch))
                    await self._pause()
            self._idle.set()
            if not self._closing:
                self._hurry.clear()

    async def _gather(self) -> None:
        try:
            async with asyncio.timeout(GATHERING):
                await self._hurry.wait()
        except TimeoutError:
            return

    async def _write(self, batch: list[Mapping[str, Any]]) -> bool:
        try:
            await self._database.execute(self._insert, batch)
        except InfrastructureError as error:
            _log.warning("server.rows_not_written", table=self._name, rows=len(batch), error=str(error))
            return False
        return True

    async def _pause(self) -> None:
        """Waits for more patience to be worth it, or for the end."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not self._closing:
                    await self._news.wait()
                    self._news.clear()
        except TimeoutError:
            return


def _clean(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
