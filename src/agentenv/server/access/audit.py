"""The audit log: who changed what, when, from where, and whether it was allowed. Kept in the database, never changed."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import select

from agentenv.server.access.principal import Principal
from agentenv.server.database import Database
from agentenv.server.database.batching import BatchWriter
from agentenv.server.database.tables import AuditRow


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One request that changed something or was refused; `time` in unix seconds, `status` as HTTP has it."""

    id: int
    time: float
    tenant: str | None
    key: str | None
    address: str | None
    action: str
    target: str | None
    status: int


class AuditLog:
    """Appends to it and reads it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = BatchWriter(database, AuditRow)

    def record(self, principal: Principal | None, action: str, target: str | None, status: int, address: str | None) -> None:
        """Notes one request; `action` is the method with the route, such as "DELETE /sandboxes/{sandboxID}"."""
        self._writer.add(
            {
                "time": time.time(),
                "tenant": principal.tenant.id if principal else None,
                "key": principal.key if principal else None,
                "address": address,
                "action": action[:128],
                "target": target[:256] if target else None,
                "status": status,
            }
        )

    async def entries(self, *, tenant: str | None = None, before: int | None = None, limit: int = 100) -> list[AuditEntry]:
        """The latest first: of one tenant or all, only those with an id below `before`."""
        await self._writer.flush()
        wanted = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if tenant is not None:
            wanted = wanted.where(AuditRow.tenant == tenant)
        if before is not None:
            wanted = wanted.where(AuditRow.id < before)
        async with self._database.read() as session:
            rows = (await session.scalars(wanted)).all()
        return [AuditEntry(row.id, row.time, row.tenant, row.key, row.address, row.action, row.target, row.status) for row in rows]

    async def close(self) -> None:
        """Writes what is still to be written."""
        await self._writer.close()
