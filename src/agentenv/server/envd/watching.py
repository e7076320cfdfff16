"""Watched directories as E2B tells of them."""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import AsyncIterator, Iterator

from agentenv.errors import NotFound
from agentenv.guest import files
from agentenv.guest.connection import Connection
from agentenv.guest.errors import AgentFailure
from agentenv.guest.files import Change, Watch
from agentenv.server.envd.connect import Code, ConnectError
from agentenv.server.envd.entries import look_up
from agentenv.server.envd.wire import filesystem_pb2 as wire

MAX_WATCHERS = 256
"""Watchers of one sandbox that wait for somebody to ask them."""

_UPLOAD = ".agentenv-"
"""How the name begins under which the agent writes a file, until it is complete and takes the place of the old one."""

_TYPES = {
    "create": wire.EVENT_TYPE_CREATE,
    "write": wire.EVENT_TYPE_WRITE,
    "remove": wire.EVENT_TYPE_REMOVE,
    "rename": wire.EVENT_TYPE_RENAME,
    "chmod": wire.EVENT_TYPE_CHMOD,
}
_STILL_THERE = {"create", "write", "chmod"}


class Replaced:
    """The files that were there already when an upload to them began, the latest of them: for their watchers that is a write."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._paths: dict[str, None] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def note(self, path: str, *, existed: bool) -> None:
        """An upload to `path` begins."""
        self._paths.pop(path, None)
        if existed:
            self._paths[path] = None
            if len(self._paths) > self._most:
                del self._paths[next(iter(self._paths))]


class Watcher:
    """One watched directory. An upload, which the agent makes complete beside the file and then renames, is told as a program's writing."""

    def __init__(self, connection: Connection, watch: Watch, root: str, replaced: Replaced, *, entries: bool) -> None:
        self._connection = connection
        self._watch = watch
        self._prefix = root.rstrip("/") + "/"
        self._replaced = replaced
        self._entries = entries
        self._arriving: str | None = None

    @classmethod
    async def open(cls, connection: Connection, root: str, replaced: Replaced, *, recursive: bool, entries: bool) -> Watcher:
        """Watches a directory; returns once changes are seen. Raises `ConnectError` for what is no directory, `AgentFailure`."""
        if (await files.stat(connection, root)).type != "dir":
            raise ConnectError(Code.INVALID_ARGUMENT, f"path {root} not a directory")
        return cls(connection, await files.watch(connection, root, recursive=recursive), root, replaced, entries=entries)

    async def next(self, interval: float) -> list[wire.FilesystemEvent] | None:
        """What the next change is for E2B's clients, which may be nothing; None when nothing changes for `interval` seconds.

        Raises `ConnectError` when the watch is over.
        """
        try:
            async with asyncio.timeout(interval):
                change = await self._watch.next()
        except TimeoutError:
            return None
        if change is None:
            raise ConnectError(Code.NOT_FOUND, f"{self._prefix} is not there any more")
        return [event async for event in self._told(change)]

    async def taken(self) -> list[wire.FilesystemEvent]:
        """All that happened since the last call, without waiting."""
        if self._watch.over:
            await self._watch.result()
        return [event for change in self._watch.take() async for event in self._told(change)]

    def close(self) -> None:
        """Ends the watch. Idempotent."""
        self._watch.stop()

    async def _told(self, change: Change) -> AsyncIterator[wire.FilesystemEvent]:
        if change.type == "overflow":
            raise ConnectError(Code.INTERNAL, "more changed than could be told; watch again, and look for yourself")
        for kind in self._kinds(change):
            event = wire.FilesystemEvent(name=change.path.removeprefix(self._prefix), type=_TYPES[kind])
            if self._entries and kind in _STILL_THERE:
                try:
                    event.entry.CopyFrom(await look_up(self._connection, change.path))
                except AgentFailure:
                    event.ClearField("entry")
            yield event

    def _kinds(self, change: Change) -> Iterator[str]:
        directory, name = posixpath.split(change.path)
        if name.startswith(_UPLOAD):
            self._arriving = directory if change.type == "rename" else self._arriving
        elif change.type == "create" and self._arriving == directory:
            self._arriving = None
            yield from ("write",) if change.path in self._replaced else ("create", "write")
        else:
            yield change.type


class Watchers:
    """The watchers that clients ask for what is new; each has a name that cannot be guessed."""

    def __init__(self) -> None:
        self._watchers: dict[str, Watcher] = {}

    def add(self, watcher: Watcher) -> str:
        """Keeps a watcher; returns its name. Raises `ConnectError` when there are too many."""
        if len(self._watchers) >= MAX_WATCHERS:
            watcher.close()
            raise ConnectError(Code.RESOURCE_EXHAUSTED, f"{MAX_WATCHERS} watchers are open; remove some")
        name = f"w{secrets.token_hex(10)}"
        self._watchers[name] = watcher
        return name

    def get(self, name: str) -> Watcher:
        """The watcher with that name. Raises `NotFound`."""
        if name not in self._watchers:
            raise NotFound(f"watcher with id {name} not found")
        return self._watchers[name]

    def remove(self, name: str) -> None:
        """Ends one. Raises `NotFound`."""
        self.get(name).close()
        del self._watchers[name]

    def close(self) -> None:
        """Ends all."""
        for name in list(self._watchers):
            self.remove(name)
