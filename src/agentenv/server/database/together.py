"""Single statements of many callers in one transaction: while one is being committed, those that come meanwhile gather for the next.

A transaction costs far more than a statement in it, and a database in a file has one writer, so that transactions would queue. Each caller
still waits until its own statement is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

AT_ONCE = 500
"""Statements in one transaction, so that nobody waits long for others'."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    statement: Executable
    rows: Rows
    done: asyncio.Future[None]


class Together:
    """Executes statements of callers that do not depend on one another: whoever needs an order waits for the first before the second.

    `turn` is held for each transaction. Belongs to one event loop.
    """

    def __init__(self, engine: AsyncEngine, turn: asyncio.Semaphore) -> None:
        self._engine = engine
        self._turn = turn
        self._waiting: list[_Write] = []
        self._committing: asyncio.Task[None] | None = None

    async def execute(self, statement: Executable, rows: Rows) -> None:
        """Returns once the statement is committed, for each of `rows` (none: once, without parameters). Raises what the database raises.

        Cancelled before its transaction has begun, it is not executed.
        """
        write = _Write(statement, rows, asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_all())
        try:
            await asyncio.shield(write.done)
        except asyncio.CancelledError:
            if write in self._waiting:
                self._waiting.remove(write)
            write.done.add_done_callback(_look_at)
            raise

    async def _commit_all(self) -> None:
        batch: list[_Write] = []
        try:
            while self._waiting:
                async with self._turn:
                    batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
                    await self._commit(batch)
        except BaseException as error:
            # A fault that is not the database's, or the end of the loop: nobody may wait for ever.
            for write in (*batch, *self._waiting):
                if not write.done.done():
                    write.done.set_exception(error)
            self._waiting.clear()
            raise
        finally:
            self._committing = None

    async def _commit(self, batch: list[_Write]) -> None:
        try:
            async with self._engine.begin() as connection:
                for statement, rows in _merged(batch):
                    await _execute(connection, statement, rows)
        except (SQLAlchemyError, OSError) as error:
            if len(batch) == 1:
                batch[0].done.set_exception(error)
                return
            # One that cannot be executed must not take the others with it.
            for write in batch:
                await self._commit([write])
            return
        for write in batch:
            write.done.set_result(None)


async def _execute(connection: AsyncConnection, statement: Executable, rows: Rows) -> None:
    await connection.execute(statement, list(rows) if rows else None)


def _merged(batch: list[_Write]) -> list[tuple[Executable, Rows]]:
    """Each statement that takes rows once, with the rows of all who want it."""
    merged: dict[int, tuple[Executable, list[Mapping[str, Any]]]] = {}
    for write in batch:
        same = id(write.statement if write.rows else write)
        merged.setdefault(same, (write.statement, []))[1].extend(write.rows)
    return list(merged.values())


def _look_at(done: asyncio.Future[None]) -> None:
    """An error that nobody waits for any more is no news."""
    if not done.cancelled():
        done.exception()
