"""Waiting that a cancelled caller cannot break off half-way, for work that must be finished or undone first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def uninterrupted(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs `work` to its end; a cancellation that arrives meanwhile is raised after it."""
    return await _to_the_end(asyncio.create_task(work), lambda: None)


async def in_thread(work: Callable[[], Result], stop: Callable[[], None]) -> Result:
    """Runs `work` in a thread. A cancellation calls `stop`, which makes `work` return soon, and is raised when it has."""
    return await _to_the_end(asyncio.create_task(asyncio.to_thread(work)), stop)


async def _to_the_end(task: asyncio.Task[Result], on_cancel: Callable[[], None]) -> Result:
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()
