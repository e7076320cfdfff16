"""All sandboxes that are not ended: in memory for quick looks, and in the database ahead of every change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import bindparam, insert, select, update

from agentenv.errors import NotFound
from agentenv.server.database import Database
from agentenv.server.database.tables import SandboxRow
from agentenv.server.fleet.records import Facts, State
from agentenv.server.fleet.resident import Resident

_INSERT = insert(SandboxRow)
# What has ended stays ended, whatever was under way.
_UPDATE = (
    update(SandboxRow)
    .where(SandboxRow.id == bindparam("resident"), SandboxRow.ended.is_(None))
    .values({name: bindparam(name) for name in ("state", "facts", "snapshot", "started", "paused")})
)
_END = (
    update(SandboxRow)
    .where(SandboxRow.id == bindparam("resident"))
    .values(state=State.ENDED.value, ended=bindparam("ended"), reason=bindparam("reason"), snapshot=None)
)


@dataclass(frozen=True, slots=True)
class Ended:
    """A sandbox of the past; times in unix seconds."""

    id: str
    tenant: str
    template: str
    started: float
    ended: float
    reason: str


class Register:
    """Keeps both in step. What is written to the database is what is about to be done; memory follows when it is done."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._residents: dict[str, Resident] = {}

    def __iter__(self) -> Iterator[Resident]:
        return iter(tuple(self._residents.values()))

    def __len__(self) -> int:
        return len(self._residents)

    def __contains__(self, identifier: str) -> bool:
        found = self._residents.get(identifier.lower())
        return found is not None and found.state is not State.CREATING

    def get(self, identifier: str) -> Resident:
        """The sandbox with that id, whoever's it is. Raises `NotFound`, also for one whose creation is not complete."""
        if identifier not in self:
            raise NotFound(f"there is no sandbox {identifier!r}.")
        return self._residents[identifier.lower()]

    def owned(self, tenant: str, identifier: str) -> Resident:
        """The same, of a tenant's own: another's does not exist for it."""
        found = self.get(identifier)
        if found.tenant != tenant:
            raise NotFound(f"there is no sandbox {identifier!r}.")
        return found

    async def plan(self, *residents: Resident) -> None:
        """Writes down sandboxes that are about to be created. They are noted as running at once: whether or not their machines came up
        before a crash makes no difference after it, when those are gone."""
        await self._database.execute(_INSERT, [_row(resident) for resident in residents])
        for resident in residents:
            self._residents[resident.id] = resident

    def adopt(self, resident: Resident) -> None:
        """Takes over what the database has already."""
        self._residents[resident.id] = resident

    async def note(self, resident: Resident, state: State) -> None:
        """Writes a sandbox's coming state with what is known of it; `resident.state` is the caller's to set, before or after."""
        await self._database.execute(
            _UPDATE,
            {
                "resident": resident.id,
                "state": state.value,
                "facts": resident.facts.to_json() | _pause_facts(resident),
                "snapshot": resident.snapshot,
                "started": resident.started,
                "paused": resident.paused,
            },
        )

    async def end(self, resident: Resident, reason: str) -> None:
        """Writes that it is no more. From then on it is not found, even if the database does not answer."""
        resident.state = State.ENDED
        planned = self._residents.pop(resident.id, None) is not None
        if planned:
            await self._database.execute(_END, {"resident": resident.id, "ended": time.time(), "reason": reason})

    async def unfinished(self) -> list[SandboxRow]:
        """The rows of those that an earlier server did not end."""
        async with self._database.read() as session:
            return list(await session.scalars(select(SandboxRow).where(SandboxRow.ended.is_(None))))

    async def past(self, tenant: str, limit: int = 100) -> list[Ended]:
        """A tenant's sandboxes that ended last, with the reason."""
        wanted = select(SandboxRow).where(SandboxRow.tenant == tenant, SandboxRow.ended.is_not(None))
        async with self._database.read() as session:
            rows = await session.scalars(wanted.order_by(SandboxRow.ended.desc()).limit(limit))
            return [Ended(row.id, row.tenant, row.template, row.started, row.ended or 0.0, row.reason or "") for row in rows]


def restored(row: SandboxRow, domain: str) -> Resident:
    """A paused sandbox as its row tells it."""
    facts = dict(row.facts)
    mode, without_memory, kept = facts.pop("pause_mode", None), facts.pop("without_memory", False), facts.pop("memory_kept", False)
    return Resident(
        row.id,
        row.tenant,
        Facts.from_json(facts),
        domain,
        state=State.PAUSED,
        snapshot=row.snapshot,
        pause_mode=mode,
        by_wish_without_memory=without_memory,
        memory_kept=kept,
        started=row.started,
        paused=row.paused,
    )


def _pause_facts(resident: Resident) -> dict[str, object]:
    return {
        "pause_mode": resident.pause_mode,
        "without_memory": resident.by_wish_without_memory,
        "memory_kept": resident.memory_kept,
    }


def _row(resident: Resident) -> dict[str, object]:
    return {
        "id": resident.id,
        "tenant": resident.tenant,
        "state": State.RUNNING.value,
        "template": resident.facts.template,
        "facts": resident.facts.to_json(),
        "snapshot": None,
        "started": resident.started,
        "paused": None,
        "ended": None,
        "reason": None,
    }
