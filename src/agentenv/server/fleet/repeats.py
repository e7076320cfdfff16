"""Creations that a client may ask for again with the same Idempotency-Key: they are done once, and answered alike each time."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy import delete

from agentenv.errors import AgentEnvError, IdempotencyMismatch, InvalidState, NotFound
from agentenv.server.database import Database
from agentenv.server.database.tables import IdempotencyRow
from agentenv.server.fleet.records import SandboxView

KEPT = 24 * 3600.0
"""Seconds for which a key is remembered."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    digest: str
    outcome: asyncio.Future[SandboxView]


class Repeats:
    """Remembers which sandbox came of which key. `find` looks one up by its id and raises `NotFound` for one that is gone."""

    def __init__(self, database: Database, find: Callable[[str], SandboxView]) -> None:
        self._database = database
        self._find = find
        self._under_way: dict[tuple[str, str], _UnderWay] = {}

    async def once(self, tenant: str, key: str, digest: str, make: Callable[[str], Awaitable[SandboxView]]) -> SandboxView:
        """What `make` gave for that key, now or earlier; it is called with the id for the sandbox, and again only after a failure.

        Raises `IdempotencyMismatch` when the key was used for something else (`digest` differs), `InvalidState` when its sandbox is gone;
        else what `make` raises.
        """
        known = self._under_way.get((tenant, key))
        if known is not None:
            _require_same(known.digest, digest)
            return await asyncio.shield(known.outcome)
        outcome: asyncio.Future[SandboxView] = asyncio.get_running_loop().create_future()
        self._under_way[tenant, key] = _UnderWay(digest, outcome)
        try:
            view = await self._made(tenant, key, digest, make)
            outcome.set_result(view)
        except AgentEnvError as error:
            outcome.set_exception(error)
            # Nobody else may have waited for it.
            outcome.exception()
            raise
        finally:
            del self._under_way[tenant, key]
            outcome.cancel()
        return view

    async def forget(self, before: float) -> None:
        """Removes what was asked for before `before` (unix seconds)."""
        async with self._database.write() as session:
            await session.execute(delete(IdempotencyRow).where(IdempotencyRow.created < before))

    async def _made(self, tenant: str, key: str, digest: str, make: Callable[[str], Awaitable[SandboxView]]) -> SandboxView:
        async with self._database.read() as session:
            row = await session.get(IdempotencyRow, (tenant, key))
        if row is not None:
            _require_same(row.digest, digest)
            try:
                return self._find(row.sandbox)
            except NotFound as error:
                raise InvalidState("the sandbox that came of this Idempotency-Key is gone.", remedy="Use a fresh key.") from error
        identifier = str(uuid.uuid4())
        async with self._database.write() as session:
            session.add(IdempotencyRow(tenant=tenant, key=key, digest=digest, sandbox=identifier, created=time.time()))
        try:
            return await make(identifier)
        except BaseException:
            async with self._database.write() as session:
                await session.execute(delete(IdempotencyRow).where(IdempotencyRow.tenant == tenant, IdempotencyRow.key == key))
            raise


def _require_same(before: str, now: str) -> None:
    if before != now:
        raise IdempotencyMismatch("this Idempotency-Key was used for another request.", remedy="Use a fresh key for each sandbox.")
