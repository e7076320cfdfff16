"""The log lines of sandboxes and builds: what happened to them and why, and what their programs print. Kept in the database for a while."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, delete, func, select

from agentenv.monitoring.logs import logger
from agentenv.server.database import Database
from agentenv.server.database.batching import BatchWriter
from agentenv.server.database.tables import LogRow, SandboxRow

Level = Literal["debug", "info", "warn", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warn", "error")
LONGEST = 16 << 10
"""Characters of one line; what is beyond is cut off."""
LOOKED_THROUGH = 10_000
"""Lines of all tenants among which the recent ones of one are looked for."""

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line; `time` is unix milliseconds."""

    time: int
    level: Level
    message: str
    fields: Mapping[str, str]


class Logbook:
    """Writes and reads them. `subject` is the id of a sandbox or a build."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = BatchWriter(database, LogRow)

    def write(self, subject: str, message: str, *, level: Level = "info", **fields: object) -> None:
        """Adds a line; it can be read from the next `read` on."""
        told = {name: str(value)[:LONGEST] for name, value in fields.items() if value is not None}
        _log.info("server.log", subject=subject, level=level, message=message, **told)
        self._writer.add(
            {"subject": subject, "time": time.time_ns() // 1_000_000, "level": level, "message": message[:LONGEST], "fields": told}
        )

    async def read(
        self,
        subject: str,
        *,
        since: int | None = None,
        until: int | None = None,
        limit: int = 1000,
        backward: bool = False,
        level: Level = "debug",
        search: str | None = None,
    ) -> list[LogLine]:
        """Lines from `since` to `until` (unix milliseconds, both included) of `level` or graver with `search` in them, oldest first.

        With `backward`, the latest first.
        """
        await self._writer.flush()
        wanted = select(LogRow).where(LogRow.subject == subject, LogRow.level.in_(LEVELS[LEVELS.index(level) :]))
        if since is not None:
            wanted = wanted.where(LogRow.time >= since)
        if until is not None:
            wanted = wanted.where(LogRow.time <= until)
        if search:
            # LIKE would not tell upper from lower case on SQLite.
            wanted = wanted.where(_position(self._database.kind, search))
        order = (LogRow.time.desc(), LogRow.id.desc()) if backward else (LogRow.time, LogRow.id)
        async with self._database.read() as session:
            rows = await session.scalars(wanted.order_by(*order).limit(limit))
            return [LogLine(row.time, _level(row.level), row.message, row.fields) for row in rows]

    async def recent(self, tenant: str, limit: int = 20) -> list[tuple[str, LogLine]]:
        """The latest lines about a tenant's sandboxes, each with the sandbox's id, the latest first; only what is not long past."""
        await self._writer.flush()
        # Lines of other tenants may be all there is for long; the latest of all are looked through, not the whole table.
        newest = select(func.coalesce(func.max(LogRow.id), 0)).scalar_subquery()
        wanted = (
            select(LogRow)
            .join(SandboxRow, SandboxRow.id == LogRow.subject)
            .where(SandboxRow.tenant == tenant, LogRow.id > newest - LOOKED_THROUGH)
            .order_by(LogRow.id.desc())
            .limit(limit)
        )
        async with self._database.read() as session:
            rows = await session.scalars(wanted)
            return [(row.subject, LogLine(row.time, _level(row.level), row.message, row.fields)) for row in rows]

    async def forget(self, before: float) -> None:
        """Removes what is older than `before` (unix seconds)."""
        async with self._database.write() as session:
            await session.execute(delete(LogRow).where(LogRow.time < int(before * 1000)))

    async def close(self) -> None:
        """Writes what is still to be written."""
        await self._writer.close()


def _position(kind: str, search: str) -> ColumnElement[bool]:
    find = func.instr if kind == "sqlite" else func.strpos
    return find(LogRow.message, search) > 0


def _level(name: str) -> Level:
    return next(level for level in LEVELS if level == name)
