"""The two kinds of database, and what happens when one is not as it should be."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from sqlalchemy import select, text, update

from agentenv.errors import ConfigError, InfrastructureError
from agentenv.server.database import Database, migrations
from agentenv.server.database.batching import BatchWriter
from agentenv.server.database.tables import LogRow, SampleRow, SchemaVersion, TenantRow


def row(name: str) -> TenantRow:
    return TenantRow(id=name, name=name, operator=False, quotas={"cpu": 1.5, "memory": None}, created=time.time())


async def test_what_was_written_is_there_for_the_next(database: Database) -> None:
    async with database.write() as session:
        session.add(row("a"))
    async with database.read() as session:
        found = (await session.scalars(select(TenantRow))).one()
    assert (found.id, found.quotas) == ("a", {"cpu": 1.5, "memory": None})


async def test_a_block_that_raises_changes_nothing(database: Database) -> None:
    async def broken() -> None:
        async with database.write() as session:
            session.add(row("a"))
            await session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await broken()
    async with database.read() as session:
        assert (await session.scalars(select(TenantRow))).all() == []


async def test_many_writers_at_once(database: Database) -> None:
    async def one(number: int) -> None:
        async with database.write() as session:
            session.add(row(f"t{number}"))

    await asyncio.gather(*(one(number) for number in range(40)))
    async with database.read() as session:
        assert len((await session.scalars(select(TenantRow))).all()) == 40


async def test_a_broken_rule_is_a_typed_error(database: Database) -> None:
    async with database.write() as session:
        session.add(row("a"))
    with pytest.raises(InfrastructureError, match="database"):
        async with database.write() as session:
            session.add(row("a"))


async def test_rows_in_batches_keep_their_order(database: Database) -> None:
    writer = BatchWriter(database, LogRow)
    for number in range(1200):
        writer.add({"subject": "s", "time": number, "level": "info", "message": str(number), "fields": {}})
    await writer.flush()
    async with database.read() as session:
        found = (await session.scalars(select(LogRow.message).order_by(LogRow.id))).all()
    assert found == [str(number) for number in range(1200)]
    await writer.close()


async def test_closing_writes_what_waits(database: Database) -> None:
    writer = BatchWriter(database, LogRow)
    writer.add({"subject": "s", "time": 1, "level": "info", "message": "last", "fields": {}})
    await writer.close()
    async with database.read() as session:
        assert (await session.scalars(select(LogRow.message))).all() == ["last"]


async def test_it_is_opened_again_as_it_was(tmp_path: Path) -> None:
    first = await Database.open(None, tmp_path)
    async with first.write() as session:
        session.add(row("a"))
    await first.close()
    second = await Database.open(None, tmp_path)
    assert await second.version() == migrations.CURRENT
    async with second.read() as session:
        assert (await session.scalars(select(TenantRow.id))).all() == ["a"]
    await second.close()


async def test_tables_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    first = await Database.open(None, tmp_path)
    async with first.write() as session:
        (await session.scalars(select(SchemaVersion))).one().version = 99
    await first.close()
    with pytest.raises(InfrastructureError, match="version 99"):
        await Database.open(None, tmp_path)


async def test_an_older_version_is_brought_up_to_date(database: Database, database_url: str | None, tmp_path: Path) -> None:
    async with database.write() as session:
        session.add(row("a"))
        await session.execute(text("DROP TABLE samples"))
        await session.execute(update(SchemaVersion).values(version=1))
    second = await Database.open(database_url, tmp_path)
    assert await second.version() == migrations.CURRENT
    async with second.read() as session:
        assert (await session.scalars(select(SampleRow))).all() == []
        assert (await session.scalars(select(TenantRow))).one().id == "a"
    await second.close()


@pytest.mark.parametrize("url", ["mysql://x/y", "not a url"])
async def test_a_url_that_makes_no_sense_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="database"):
        await Database.open(url, tmp_path)


async def test_a_server_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError) as caught:
        await Database.open(f"postgresql://me:secret@/x?host={tmp_path}", tmp_path)
    assert "secret" not in str(caught.value)
    assert "cannot be used" in str(caught.value)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "server.db").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(InfrastructureError, match="cannot be used"):
        await Database.open(None, tmp_path)
