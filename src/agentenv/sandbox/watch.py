"""A watched directory of a sandbox."""

from __future__ import annotations

import asyncio

from agentenv.errors import InfrastructureError
from agentenv.guest.files import Watch
from agentenv.sandbox.command_handle import tell
from agentenv.sandbox.link import Link
from agentenv.sandbox.results import FilesystemEvent, WatchCallback


class AsyncWatchHandle:
    """Gives the changes of a directory: to the callback it was made with, or to `async for event in handle`, until `stop()`."""

    def __init__(self, link: Link, watch: Watch, path: str, on_event: WatchCallback | None) -> None:
        self._link = link
        self._watch = watch
        self._path = path
        self._pump = asyncio.create_task(self._tell_all(on_event)) if on_event is not None else None

    async def stop(self) -> None:
        """Ends the watch, once the callback has had all changes seen so far. Raises what the callback raised. Idempotent."""
        self._watch.stop()
        if self._pump is not None and self._pump is not asyncio.current_task():
            await self._pump

    async def get_new_events(self) -> list[FilesystemEvent]:
        """The changes since the last call, without waiting."""
        return [FilesystemEvent.of(change, self._path) for change in self._watch.take()]

    def __aiter__(self) -> AsyncWatchHandle:
        return self

    async def __anext__(self) -> FilesystemEvent:
        try:
            change = await self._watch.next()
        except InfrastructureError as error:
            raise await self._link.explain(error) from error
        if change is None:
            raise StopAsyncIteration
        return FilesystemEvent.of(change, self._path)

    async def _tell_all(self, on_event: WatchCallback) -> None:
        async for event in self:
            await tell(on_event, event)
