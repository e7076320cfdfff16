"""Measurements that outlive the server: written in pieces, given once to the next one, and gone with their sandbox."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import func, insert, select, update

from agentenv.server.access import Access
from agentenv.server.database import Database
from agentenv.server.database.tables import SampleRow, SandboxRow
from agentenv.server.fleet.archive import Archive, Sample


def samples(first: int, last: int) -> list[Sample]:
    return [Sample(float(number), number / 7, number << 20, number << 30, number) for number in range(first, last + 1)]


async def reopened(database: Database, archive: Archive) -> Archive:
    await archive.close()
    fresh = Archive(database)
    await fresh.open()
    return fresh


async def pieces(database: Database) -> int:
    async with database.read() as session:
        return await session.scalar(select(func.count()).select_from(SampleRow)) or 0


async def test_the_next_server_is_given_all_of_it_once(database: Database) -> None:
    archive = Archive(database)
    for first, last in ((1, 60), (61, 61), (62, 70)):
        archive.write("one", samples(first, last))
    archive.write("two", samples(5, 6))
    archive.write("three", [])
    assert await archive.earlier("one") == []
    archive = await reopened(database, archive)
    assert await archive.earlier("one") == samples(1, 70)
    assert await archive.earlier("one") == []
    assert await archive.earlier("two") == samples(5, 6)
    assert await archive.earlier("three") == []
    await archive.close()


async def test_what_is_too_old_and_what_has_ended_is_forgotten(database: Database, tmp_path: Path) -> None:
    access = await Access.open(database, tmp_path)
    tenant, archive = access.tenant("default").id, Archive(database)
    row = {"tenant": tenant, "state": "running", "template": "base", "facts": {}, "started": 0.0}
    await database.execute(insert(SandboxRow), [{"id": name, **row} for name in ("lives", "ended")])
    for name in ("lives", "ended"):
        archive.write(name, samples(1, 10))
        archive.write(name, samples(11, 20))
    await archive.forget([("lives", 10.5)])
    assert await pieces(database) == 3
    await database.execute(update(SandboxRow).where(SandboxRow.id == "ended").values(ended=1.0))
    await archive.forget([])
    assert await pieces(database) == 1
    archive = await reopened(database, archive)
    assert await archive.earlier("lives") == samples(11, 20)
    await archive.close()
    await access.close()
