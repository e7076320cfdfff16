"""Files in a sandbox, through its agent: whole contents, streams, directories, changes.

Paths are the sandbox's. Failures are `AgentFailure` with an errno's name; the connection's end is `ConnectionLost`.
"""

from __future__ import annotations

import asyncio
import io
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Any, Literal

import msgspec

from agentenv.errors import ProtocolError
from agentenv.guest.connection import Connection
from agentenv.guest.errors import AgentFailure
from agentenv.guest.frames import Content, Kind
from agentenv.guest.processes import checked
from agentenv.guest.stream import Incoming, Stream

READ_AHEAD = 768 << 10
"""Credit that a reader of a file gives beyond the initial one, in bytes, so that the agent reads on while the host still copies."""

MAX_ENTRIES = 1_000_000
"""Entries of one listing that are accepted: a listing is held in memory, and its length is the guest's to choose."""

MAX_CHANGES = 65_536
"""Changes that wait for a slow reader of a watch; beyond it they are dropped and an overflow is reported."""

FileType = Literal["file", "dir", "symlink", "fifo", "socket", "char", "block"]
ChangeType = Literal["create", "write", "remove", "rename", "chmod", "overflow"]


class Entry(msgspec.Struct, frozen=True):
    """A file, directory or whatever else has a name; `size` in bytes, `mtime` in unix seconds, `target` where a symlink points.

    `attributes`: its extended attributes as far as they were asked for.
    """

    name: str
    path: str
    type: FileType
    size: int
    mode: int
    uid: int
    gid: int
    user: str | None
    group: str | None
    mtime: float
    target: str | None = None
    attributes: Mapping[str, str] = {}


class Change(msgspec.Struct, frozen=True):
    """Something that happened below a watched directory. `overflow`: some changes were lost, look for yourself."""

    type: ChangeType
    path: str = ""


def reader(
    connection: Connection, path: str, *, offset: int | None = None, length: int | None = None, user: str | int | None = None
) -> Incoming:
    """Starts reading a file; `Incoming.read()` gives it piece by piece."""
    stream = Incoming("read")
    connection.start(stream, "read", {"path": path, "offset": offset, "length": length, "user": user})
    stream.widen(READ_AHEAD)
    return stream


async def read(
    connection: Connection, path: str, *, offset: int | None = None, length: int | None = None, user: str | int | None = None
) -> bytes:
    """A whole file, or `length` bytes of it from `offset` on."""
    stream = _Whole()
    connection.start(stream, "read", {"path": path, "offset": offset, "length": length, "user": user})
    stream.widen(READ_AHEAD)
    await stream.result()
    return stream.content.getvalue()


class _Whole(Stream):
    """Takes a whole file in. A BytesIO hands its content out without another copy."""

    def __init__(self) -> None:
        super().__init__("read")
        self.content = io.BytesIO()

    def on_data(self, kind: Kind, data: Content) -> None:
        self.content.write(data)
        self.consumed(len(data))


async def drain(stream: Incoming) -> AsyncIterator[bytes]:
    """Every piece of a stream until its end."""
    while piece := await stream.read():
        yield piece


async def write(
    connection: Connection,
    path: str,
    source: bytes | AsyncIterable[bytes],
    *,
    mode: int | None = None,
    append: bool = False,
    parents: bool = True,
    user: str | int | None = None,
) -> int:
    """Writes a file and returns its size in bytes. The old content stays until the new one is complete."""
    stream = Stream("write")
    parameters = {"path": path, "mode": mode, "append": append or None, "parents": parents, "user": user}
    connection.start(stream, "write", parameters)
    size = (await upload(stream, source)).get("size")
    return checked(size, int, "write")


async def upload(stream: Stream, source: bytes | AsyncIterable[bytes]) -> dict[str, Any]:
    """Sends a whole source and returns the operation's result; whatever stops it on this side cancels the operation."""
    try:
        if isinstance(source, bytes):
            await stream.send(source)
        else:
            async for piece in source:
                await stream.send(piece)
                if stream.over:
                    break
        stream.end()
        return await stream.result()
    finally:
        stream.cancel()


async def stat(connection: Connection, path: str, *, follow: bool = True, attributes: str | None = None) -> Entry:
    """What is at a path; with `attributes`, also the extended attributes whose names begin so."""
    return checked(await connection.call("stat", path=path, follow=follow, attributes=attributes), Entry, "stat")


async def set_attributes(connection: Connection, path: str, prefix: str, values: Mapping[str, str]) -> None:
    """Gives a file these extended attributes, and no others whose names begin with `prefix`."""
    await connection.call("attributes", path=path, prefix=prefix, values=dict(values))


class _Listing(Stream):
    def __init__(self) -> None:
        super().__init__("list")
        self.entries: list[Entry] = []

    def on_event(self, event: str, body: dict[str, Any]) -> None:
        if event != "entries":
            super().on_event(event, body)
        self.entries += checked(body.get("entries"), list[Entry], "list")
        if len(self.entries) > MAX_ENTRIES:
            self.cancel()
            self.fail(AgentFailure("list", "E2BIG", f"more than {MAX_ENTRIES} entries; list a smaller part"))


async def list_directory(connection: Connection, path: str, *, depth: int = 1, attributes: str | None = None) -> list[Entry]:
    """The entries of a directory, down to `depth` levels; with `attributes`, also the extended attributes whose names begin so."""
    stream = _Listing()
    connection.start(stream, "list", {"path": path, "depth": depth, "attributes": attributes})
    await stream.result()
    return stream.entries


async def make_directory(
    connection: Connection, path: str, *, mode: int | None = None, parents: bool = True, user: str | int | None = None
) -> bool:
    """Makes a directory; False when it was there already."""
    answer = await connection.call("mkdir", path=path, mode=mode, parents=parents, user=user)
    return checked(answer.get("created"), bool, "mkdir")


class Watch(Stream):
    """Changes below a directory, from `ready()` until `stop()`."""

    def __init__(self) -> None:
        super().__init__("watch")
        self._changes: deque[Change] = deque()
        self._arrival = asyncio.Event()
        self._is_ready = False

    def on_event(self, event: str, body: dict[str, Any]) -> None:
        if event == "ready":
            self._is_ready = True
        elif event == "overflow" or len(self._changes) >= MAX_CHANGES:
            if not self._changes or self._changes[-1].type != "overflow":
                self._changes.append(Change("overflow"))
        elif event == "change":
            self._changes.append(checked({"type": body.get("type"), "path": body.get("path")}, Change, "watch"))
        else:
            raise ProtocolError(f"the agent sent the event {event!r} in answer to 'watch'.")
        self._arrival.set()

    def on_finished(self) -> None:
        self._arrival.set()

    async def ready(self) -> None:
        """Returns when changes from now on are seen. Raises `AgentFailure` where there is nothing to watch."""
        while not self._is_ready:
            if self._over:
                await self.result()
            await self._wait()

    async def next(self) -> Change | None:
        """The next change; None after `stop()`."""
        while not self._changes:
            if self._cancelled:
                return None
            if self._over:
                await self.result()
                return None
            await self._wait()
        return self._changes.popleft()

    def take(self) -> list[Change]:
        """All changes that nobody has read yet, without waiting."""
        changes = list(self._changes)
        self._changes.clear()
        return changes

    def stop(self) -> None:
        """Ends the watch; what it had already seen can still be read. Idempotent."""
        self.cancel()
        self._arrival.set()

    async def _wait(self) -> None:
        self._arrival.clear()
        await self._arrival.wait()


async def watch(connection: Connection, path: str, *, recursive: bool = False) -> Watch:
    """Watches a directory; returns once changes are seen."""
    stream = Watch()
    connection.start(stream, "watch", {"path": path, "recursive": recursive})
    try:
        await stream.ready()
    except asyncio.CancelledError:
        stream.cancel()
        raise
    return stream
