"""An event loop in a thread of its own, in which plain (synchronous) code has asynchronous work done."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Generic, TypeVar

from agentenv.errors import InvalidState

Value = TypeVar("Value")


class LoopThread:
    """The thread starts with the object and ends with `close()`. Safe to use from any number of threads but its own."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._main, name="agentenv", daemon=True)
        self._thread.start()
        self._ready.wait()

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Runs `work` in the loop and returns its result.

        An interrupt (Ctrl-C) of the waiting thread cancels the work, and is raised when that is over. Raises `InvalidState` in the
        loop's own thread and after `close()`.
        """
        loop = self._loop
        if loop is None:
            work.close()
            raise InvalidState("this process is ending; its sandboxes are gone.")
        if threading.get_ident() == self._thread.ident:
            work.close()
            raise InvalidState(
                "this call would wait for itself: it came from the event loop of the synchronous sandboxes.",
                remedy="Use `AsyncSandbox` in coroutines.",
            )
        call = _Call(work, contextvars.copy_context())
        try:
            loop.call_soon_threadsafe(call.start, loop)
            call.over.acquire()
        except BaseException:
            loop.call_soon_threadsafe(call.cancel)
            call.over.acquire()
            raise
        return call.result()

    def call(self, function: Callable[..., Value], *args: Any, **kwargs: Any) -> Value:
        """Calls a plain function in the loop's thread."""

        async def work() -> Value:
            return function(*args, **kwargs)

        return self.run(work())

    def iterate(self, source: AsyncIterator[Value]) -> Iterator[Value]:
        """The items of an asynchronous iterator; closes it where the consumer stops early."""
        try:
            while True:
                try:
                    yield self.run(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                self.run(close())

    def close(self) -> None:
        """Lets the loop finish what it must and ends the thread. Idempotent."""
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            loop.call_soon_threadsafe(stop.set)
            self._thread.join()

    def _main(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._serve())
        self._loop = None

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()


class _Call(Generic[Value]):
    """One piece of work that a thread waits for. A bare lock is the quickest way to wait for another thread."""

    def __init__(self, work: Coroutine[Any, Any, Value], context: contextvars.Context) -> None:
        self._work = work
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._values: list[Value] = []
        self._failure: BaseException = asyncio.CancelledError()
        self._told = False
        self.over = threading.Lock()
        self.over.acquire()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the loop: begins."""
        if self._told:
            return
        self._task = loop.create_task(self._main(), context=self._context)
        # Only for work that is cancelled before it has begun; otherwise the thread is told at once, a turn of the loop earlier.
        self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        """In the loop: asks the work to stop."""
        if self._task is not None:
            self._task.cancel()
        else:
            # The interrupt came before the work was handed over.
            self._work.close()
            self._tell()

    def result(self) -> Value:
        """When it is over: what it returned, or raises what it raised."""
        if self._values:
            return self._values[0]
        raise self._failure

    async def _main(self) -> None:
        try:
            self._values.append(await self._work)
        finally:
            self._failure = sys.exception() or self._failure
            self._tell()

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            # Read once, so that asyncio does not complain: the waiting thread raises it.
            task.exception()
        self._work.close()
        self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self.over.release()


async def _next(source: AsyncIterator[Value]) -> Value:
    return await anext(source)


def in_thread(callback: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """A callback of plain code, made to run in a worker thread and not in the loop, so that it may itself use the sandbox."""
    if callback is None or inspect.iscoroutinefunction(callback):
        return callback
    plain = callback

    async def call(value: Any) -> Any:
        return await asyncio.to_thread(plain, value)

    return call
