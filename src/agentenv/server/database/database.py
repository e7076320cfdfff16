"""The connection to the database: SQLite in a file, or PostgreSQL by its URL, with the same tables and the same two ways in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Executable, event, make_url, select, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from agentenv.errors import ConfigError, InfrastructureError
from agentenv.server.database.migrations import migrate
from agentenv.server.database.tables import SchemaVersion
from agentenv.server.database.together import Together

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
LOCK = 0x6167656E74656E76
"""PostgreSQL's name for the lock of the one server that a database has: any number that others are unlikely to choose."""
BUSY = 30.0
"""Seconds that a writer waits for another process's."""


class Database:
    """An open database whose tables are as this version wants them. Belongs to one event loop.

    `read` and `write` give a session: of `write`, everything takes effect at its end or nothing does. They raise `InfrastructureError`
    when the database does not answer.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._sessions = async_sessionmaker(engine, expire_on_commit=False)
        # SQLite has one writer: waiting for one's turn here costs less than finding the file locked.
        self._turn = asyncio.Semaphore(1 if engine.dialect.name == "sqlite" else 32)
        self._together = Together(engine, self._turn)

    @classmethod
    async def open(cls, url: str | None, home: Path) -> Database:
        """Opens `url`, by default `server.db` in the directory `home`, and brings its tables up to date.

        Raises `ConfigError` for a URL that makes no sense, `InfrastructureError` where the database does not answer or has newer tables.
        """
        target = parse_url(url, home)
        engine = create_async_engine(target, pool_pre_ping=target.get_backend_name() != "sqlite", connect_args=_arguments(target))
        if target.get_backend_name() == "sqlite":
            event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        try:
            async with engine.begin() as connection:
                await _migrate(connection, target)
        except (SQLAlchemyError, OSError) as error:
            await engine.dispose()
            raise InfrastructureError(
                f"the database {target.render_as_string(hide_password=True)} cannot be used: {_first_line(error)}.",
                remedy="Check that it runs and that `database` names it rightly.",
            ) from error
        except BaseException:
            await engine.dispose()
            raise
        return cls(engine)

    @property
    def kind(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """A session that only looks."""
        try:
            async with self._sessions() as session:
                yield session
        except (SQLAlchemyError, OSError) as error:
            raise _unavailable(error) from error

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """A session whose changes are committed at the end of the block, and undone if it raises."""
        try:
            async with self._turn, self._sessions() as session, session.begin():
                yield session
        except (SQLAlchemyError, OSError) as error:
            raise _unavailable(error) from error

    async def execute(self, statement: Executable, rows: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None) -> None:
        """One statement, for one or several rows, that takes effect for all of them or none: what is written all the time goes this way.

        It may share its transaction with other callers' statements, which do not depend on it.
        """
        given = [rows] if isinstance(rows, Mapping) else rows or ()
        try:
            await self._together.execute(statement, given)
        except (SQLAlchemyError, OSError) as error:
            raise _unavailable(error) from error

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """The right to be the server of this database. One in a file is guarded by the lock on its directory.

        Raises `InfrastructureError` while another server has it.
        """
        if self.kind == "sqlite":
            yield
            return
        async with self._engine.connect() as connection:
            if not await connection.scalar(text(f"SELECT pg_try_advisory_lock({LOCK})")):
                raise InfrastructureError("another server uses this database.", remedy="End it, or give this one a database of its own.")
            await connection.commit()
            yield

    async def version(self) -> int:
        """The version of the tables."""
        async with self.read() as session:
            return (await session.scalars(select(SchemaVersion.version))).one()

    async def close(self) -> None:
        """Closes every connection; idempotent."""
        await self._engine.dispose()


def parse_url(url: str | None, home: Path) -> URL:
    """The URL with the driver that this program uses. Raises `ConfigError`."""
    if url is None:
        return URL.create(DRIVERS["sqlite"], database=str(home / "server.db"))
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigError(
            f"{url!r} is no URL of a database", key="database", remedy="Write postgresql://USER:PASSWORD@HOST/NAME."
        ) from error
    kind = parsed.get_backend_name()
    if kind not in DRIVERS:
        raise ConfigError(f"{kind!r} is no database that is known here", key="database", remedy="Use sqlite or postgresql.")
    return parsed.set(drivername=DRIVERS[kind])


def _arguments(target: URL) -> dict[str, object]:
    return {"timeout": BUSY} if target.get_backend_name() == "sqlite" else {"command_timeout": 60, "timeout": 10}


async def _migrate(connection: AsyncConnection, target: URL) -> None:
    await connection.run_sync(migrate, target.render_as_string(hide_password=True))


def _prepare_sqlite(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    # NORMAL loses nothing when the process is killed, only perhaps the last transactions when the machine loses power.
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _unavailable(error: Exception) -> InfrastructureError:
    return InfrastructureError(f"the database does not do what it should: {_first_line(error)}.", remedy="Look into its log and its disk.")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
