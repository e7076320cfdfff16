"""E2B's service `filesystem.Filesystem`: all about files but their content."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator

from agentenv.guest import files
from agentenv.guest.connection import Connection
from agentenv.guest.errors import AgentFailure
from agentenv.server.envd.connect import Call, Code, ConnectError, Service, server_stream, unary
from agentenv.server.envd.entries import METADATA, describe, look_up
from agentenv.server.envd.paths import resolve
from agentenv.server.envd.session import Session, keepalive_of
from agentenv.server.envd.users import User
from agentenv.server.envd.watching import Watcher
from agentenv.server.envd.wire import filesystem_pb2 as wire


class FilesystemService:
    """The methods; each is about the sandbox of `session`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def service(self) -> Service:
        """They, ready to be served."""
        return Service(
            "filesystem.Filesystem",
            (
                unary("Stat", wire.StatRequest, self.stat),
                unary("MakeDir", wire.MakeDirRequest, self.make_dir),
                unary("Move", wire.MoveRequest, self.move),
                unary("ListDir", wire.ListDirRequest, self.list_dir),
                unary("Remove", wire.RemoveRequest, self.remove),
                server_stream("WatchDir", wire.WatchDirRequest, self.watch_dir),
                unary("CreateWatcher", wire.CreateWatcherRequest, self.create_watcher),
                unary("GetWatcherEvents", wire.GetWatcherEventsRequest, self.get_watcher_events),
                unary("RemoveWatcher", wire.RemoveWatcherRequest, self.remove_watcher),
            ),
            self._session.explain,
        )

    async def stat(self, call: Call, request: wire.StatRequest) -> wire.StatResponse:
        """What is at a path; a link is itself."""
        path, _ = await self._resolved(call, request.path)
        return wire.StatResponse(entry=await look_up(self._connection, path))

    async def make_dir(self, call: Call, request: wire.MakeDirRequest) -> wire.MakeDirResponse:
        """Makes a directory, and those above it, which belong to the caller."""
        path, user = await self._resolved(call, request.path)
        try:
            made = await files.make_directory(self._connection, path, user=user.name)
        except AgentFailure as failure:
            if failure.code == "EEXIST":
                raise ConnectError(Code.INVALID_ARGUMENT, f"path already exists but it is not a directory: {path}") from failure
            raise
        if not made:
            raise ConnectError(Code.ALREADY_EXISTS, f"directory already exists: {path}")
        return wire.MakeDirResponse(entry=await look_up(self._connection, path))

    async def move(self, call: Call, request: wire.MoveRequest) -> wire.MoveResponse:
        """Renames; the directories above the new name are made."""
        source, user = await self._resolved(call, request.source)
        destination, _ = await self._resolved(call, request.destination)
        await files.stat(self._connection, source, follow=False)
        await files.make_directory(self._connection, posixpath.dirname(destination) or "/", user=user.name)
        await self._connection.call("rename", path=source, to=destination)
        return wire.MoveResponse(entry=await look_up(self._connection, destination))

    async def list_dir(self, call: Call, request: wire.ListDirRequest) -> wire.ListDirResponse:
        """What is in a directory, down to a depth, in the order of the names."""
        path, _ = await self._resolved(call, request.path)
        if (await files.stat(self._connection, path)).type != "dir":
            raise ConnectError(Code.INVALID_ARGUMENT, f"path is not a directory: {path}")
        # What a link to a directory holds is shown under the link's own name: a slash at the end has the agent follow it.
        found = await files.list_directory(self._connection, path.rstrip("/") + "/", depth=request.depth or 1, attributes=METADATA)
        entries = sorted(found, key=lambda entry: entry.path.split("/"))
        return wire.ListDirResponse(entries=[await describe(self._connection, entry, posixpath.normpath(entry.path)) for entry in entries])

    async def remove(self, call: Call, request: wire.RemoveRequest) -> wire.RemoveResponse:
        """Removes a file, or a directory with all that is in it; what is not there is removed already."""
        path, _ = await self._resolved(call, request.path)
        await self._connection.call("remove", path=path, recursive=True, missing_ok=True)
        return wire.RemoveResponse()

    async def watch_dir(self, call: Call, request: wire.WatchDirRequest) -> AsyncIterator[wire.WatchDirResponse]:
        """Tells what changes in a directory, until the client goes away."""
        watcher = await self._watcher(call, request)
        interval = keepalive_of(call.headers)
        try:
            yield wire.WatchDirResponse(start=wire.WatchDirResponse.StartEvent())
            while True:
                events = await watcher.next(interval)
                if events is None:
                    yield wire.WatchDirResponse(keepalive=wire.WatchDirResponse.KeepAlive())
                for event in events or ():
                    yield wire.WatchDirResponse(filesystem=event)
        finally:
            watcher.close()

    async def create_watcher(self, call: Call, request: wire.CreateWatcherRequest) -> wire.CreateWatcherResponse:
        """Watches a directory for a client that will ask what changed."""
        return wire.CreateWatcherResponse(watcher_id=self._session.watchers.add(await self._watcher(call, request)))

    async def get_watcher_events(self, call: Call, request: wire.GetWatcherEventsRequest) -> wire.GetWatcherEventsResponse:
        """What changed since it was last asked."""
        return wire.GetWatcherEventsResponse(events=await self._session.watchers.get(request.watcher_id).taken())

    async def remove_watcher(self, call: Call, request: wire.RemoveWatcherRequest) -> wire.RemoveWatcherResponse:
        """Ends such a watch."""
        self._session.watchers.remove(request.watcher_id)
        return wire.RemoveWatcherResponse()

    @property
    def _connection(self) -> Connection:
        return self._session.link.connection()

    async def _resolved(self, call: Call, path: str) -> tuple[str, User]:
        user = await self._session.caller(call)
        return resolve(path, user, self._session.default_workdir), user

    async def _watcher(self, call: Call, request: wire.WatchDirRequest | wire.CreateWatcherRequest) -> Watcher:
        """A sandbox's files are never on a network, so that `allow_network_mounts` asks for nothing."""
        path, _ = await self._resolved(call, request.path)
        return await Watcher.open(
            self._connection, path, self._session.replaced, recursive=request.recursive, entries=request.include_entry
        )
