"""Statements of many callers share transactions, and each caller is told what became of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import event, insert, select

from agentenv.errors import InfrastructureError
from agentenv.server.database import Database
from agentenv.server.database.tables import TenantRow

_INSERT = insert(TenantRow)


def row(name: str) -> dict[str, Any]:
    return {"id": name, "name": name, "operator": False, "quotas": {}, "created": 0.0}


async def names(database: Database) -> list[str]:
    async with database.read() as session:
        return list(await session.scalars(select(TenantRow.name).order_by(TenantRow.name)))


async def test_those_who_come_at_once_need_few_transactions(database: Database) -> None:
    commits: list[object] = []
    event.listen(database._engine.sync_engine, "commit", commits.append)
    await asyncio.gather(*(database.execute(_INSERT, row(f"t{number:02}")) for number in range(40)))
    assert await names(database) == [f"t{number:02}" for number in range(40)]
    assert len(commits) == 1


async def test_a_statement_that_fails_takes_no_other_with_it(database: Database) -> None:
    wishes = [database.execute(_INSERT, [row("a")]), database.execute(_INSERT, [row("b"), row("b")]), database.execute(_INSERT, row("c"))]
    outcomes = await asyncio.gather(*wishes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), InfrastructureError, type(None)]
    assert await names(database) == ["a", "c"]


async def test_who_gives_up_in_the_queue_writes_nothing(database: Database) -> None:
    first = asyncio.create_task(database.execute(_INSERT, row("first")))
    for _ in range(3):  # its transaction begins
        await asyncio.sleep(0)
    assert database._together._waiting == []
    kept = asyncio.create_task(database.execute(_INSERT, row("kept")))
    given_up = asyncio.create_task(database.execute(_INSERT, row("given up")))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait({first, kept, given_up})
    assert given_up.cancelled()
    assert await names(database) == ["first", "kept"]
