"""A sandbox that another process owns, reached through the socket of its agent."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import NoReturn

from agentenv.errors import AgentEnvError, CapabilityError, InvalidState, NotFound, SandboxDied, Stage
from agentenv.isolation.contract import Exit, OomKill, Resources, Usage
from agentenv.node import Node, SandboxRecord, SandboxRequest
from agentenv.node.snapshots import Snapshot
from agentenv.sandbox.host import Host


def attach(node: Node, sandbox_id: str) -> Host:
    """The sandbox with that id: the node's own, or one of another process. Raises `NotFound`."""
    try:
        return node.get(sandbox_id)
    except NotFound:
        record = find_record(node, sandbox_id)
    if record is None:
        raise NotFound(f"there is no sandbox {sandbox_id!r} on this machine.", remedy="`agentenv ls` shows those that there are.")
    return AttachedHost(node, record)


def find_record(node: Node, sandbox_id: str) -> SandboxRecord | None:
    """What the journals tell of a sandbox, None when it is gone."""
    return next((record for record in node.list() if record.id == sandbox_id), None)


class AttachedMachine:
    """The agent of a sandbox of another process. What only its owner can see of it is not seen here."""

    passes_descriptors = True

    def __init__(self, record: SandboxRecord) -> None:
        self._record = record

    def dial(self) -> socket.socket:
        """A fresh connection to the agent. Raises `SandboxDied`."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            # A socket's address holds 107 bytes; through a descriptor of its directory the path is always short.
            directory = os.open(self._record.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                connection.connect(f"/proc/self/fd/{directory}/agent.sock")
            finally:
                os.close(directory)
        except OSError as error:
            connection.close()
            raise SandboxDied(self._record.id, f"its agent cannot be reached ({error.strerror})") from error
        return connection

    async def oom_kills(self) -> tuple[OomKill, ...]:
        return ()

    async def process_limit_hits(self) -> int:
        return 0


class AttachedHost:
    """The part of a `Host` that another process than the owner can play."""

    timings: tuple[Stage, ...] = ()
    failure: AgentEnvError | None = None

    def __init__(self, node: Node, record: SandboxRecord) -> None:
        self._node = node
        self._record = record
        self._ended = False
        self.id = record.id
        self.machine = AttachedMachine(record)
        self.request = SandboxRequest(image=record.image, snapshot=record.snapshot, metadata=record.metadata)

    @property
    def generation(self) -> int:
        return self._record.generation

    @property
    def state(self) -> str:
        return "dead" if self._ended else self._record.state

    def require_alive(self) -> None:
        """Looks into the journal once more, since the owner may have paused, rolled back or ended the sandbox."""
        record = find_record(self._node, self.id)
        if record is None or self._ended:
            self._ended = True
            raise InvalidState(f"sandbox {self.id} is gone.", remedy="Create another one.")
        self._record = record
        self.machine = AttachedMachine(record)

    async def kill(self) -> Exit:
        """Ends the sandbox; its owner learns of it and frees the rest."""
        if not self._ended:
            self._ended = True
            try:
                await self._node.kill(self.id)
            except NotFound:
                return Exit(None, None, "it was gone already")
        return Exit(None, None, f"it was killed by process {os.getpid()}")

    async def wait(self) -> Exit:
        """Returns when its first process has ended."""
        if not self._ended and self._record.init is not None:
            await _process_end(self._record.init[0])
        elif not self._ended:
            # Its end cannot be seen from here; whoever asks has a limit of their own.
            await asyncio.Event().wait()
        self._ended = True
        return Exit(None, None, f"its owner, process {self._record.owner_pid}, ended it")

    async def host_port(self, port: int) -> tuple[str, int]:
        self._owner_only("publish a port")

    async def pause(self) -> None:
        self._owner_only("pause it")

    async def resume(self) -> None:
        self._owner_only("resume it")

    async def resize(self, resources: Resources) -> None:
        self._owner_only("resize it")

    async def usage(self) -> Usage:
        self._owner_only("see its usage")

    def set_lifetime(self, seconds: float | None) -> None:
        self._owner_only("set its lifetime")

    async def snapshot(self, name: str | None = None) -> Snapshot:
        self._owner_only("take a snapshot")

    async def rollback(self, name_or_id: str) -> None:
        self._owner_only("roll it back")

    async def fork(self, count: int) -> Sequence[Host | AgentEnvError]:
        self._owner_only("fork it")

    def _owner_only(self, what: str) -> NoReturn:
        raise CapabilityError(
            f"sandbox {self.id} belongs to process {self._record.owner_pid}; only that one can {what}.",
            remedy="Do it there, through the handle that `create` returned.",
        )


async def _process_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
