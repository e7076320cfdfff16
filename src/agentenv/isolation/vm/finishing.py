"""Work that a cancelled caller does not leave behind half done: what it makes would be made after all had been cleared away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def finished(work: Callable[[], Result], stop: Callable[[], None] | None = None) -> Result:
    """What `work` returns, done in a thread. A cancellation calls `stop`, if given, and is raised when the thread has come to its end."""
    return await to_the_end(asyncio.to_thread(work), stop)


async def to_the_end(work: Coroutine[Any, Any, Result], stop: Callable[[], None] | None = None) -> Result:
    """What `work` returns. A cancellation is not passed on to it; it calls `stop`, if given, and is raised when `work` has ended."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            if stop is not None:
                stop()
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()
