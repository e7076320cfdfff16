"""A sandbox that another process owns, reached through the socket of its agent."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentenv.egress.denials import Denial
from agentenv.egress.policy import EgressPolicy
from agentenv.errors import AgentEnvError, InvalidState, NotFound, SandboxDied, Stage
from agentenv.isolation.contract import Capabilities, Exit, OomKill, Resources, Usage
from agentenv.node import Node, SandboxRecord, SandboxRequest
from agentenv.node.control import Child, ask, restored
from agentenv.node.hibernated import HIBERNATED
from agentenv.node.records import StorageKill
from agentenv.node.snapshots import Snapshot
from agentenv.sandbox.host import Host


async def attach(node: Node, sandbox_id: str) -> Host:
    """The sandbox with that id: the node's own, or one of another process; one without a process becomes the node's. Raises `NotFound`."""
    try:
        return node.get(sandbox_id)
    except NotFound:
        record = await asyncio.to_thread(find_record, node, sandbox_id)
    if record is None:
        raise NotFound(f"there is no sandbox {sandbox_id!r} on this machine.", remedy="`agentenv ls` shows those that there are.")
    if not record.owner:
        return node.adopt(sandbox_id)
    able = Capabilities() if record.state == HIBERNATED else await ask(owner_of(record), "capabilities", sandbox_id)
    return AttachedHost(node, record, msgspec.convert(able, Capabilities))


def find_record(node: Node, sandbox_id: str) -> SandboxRecord | None:
    """What the journals tell of a sandbox, None when it is gone."""
    return next((record for record in node.list() if record.id == sandbox_id), None)


class AttachedMachine:
    """The agent of a sandbox of another process; what only its owner can see of it, the owner is asked for."""

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
        return msgspec.convert(await ask(owner_of(self._record), "oom_kills", self._record.id), tuple[OomKill, ...])

    async def process_limit_hits(self) -> int:
        return msgspec.convert(await ask(owner_of(self._record), "process_limit_hits", self._record.id), int)


class AttachedHost:
    """The part of a `Host` that another process than the owner can play."""

    timings: tuple[Stage, ...] = ()
    failure: AgentEnvError | None = None

    def __init__(self, node: Node, record: SandboxRecord, capabilities: Capabilities) -> None:
        self._node = node
        self._record = record
        self.capabilities = capabilities
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
        return msgspec.convert(await self._ask("host_port", port=port), tuple[str, int])

    async def pause(self, to_disk: bool = False) -> None:
        await self._ask("pause", to_disk=to_disk)
        self.require_alive()

    async def resume(self) -> None:
        await self._ask("resume")
        self.require_alive()

    async def resize(self, resources: Resources) -> None:
        await self._ask("resize", resources=msgspec.to_builtins(resources))

    async def usage(self) -> Usage:
        return msgspec.convert(await self._ask("usage"), Usage)

    async def storage_kills(self) -> tuple[StorageKill, ...]:
        return msgspec.convert(await self._ask("storage_kills"), tuple[StorageKill, ...])

    async def set_lifetime(self, seconds: float | None) -> None:
        await self._ask("set_lifetime", seconds=seconds)

    async def set_network(self, policy: EgressPolicy) -> None:
        await self._ask("set_network", policy=policy.to_dict())

    async def network_log(self) -> Sequence[Denial]:
        return msgspec.convert(await self._ask("network_log"), list[Denial])

    async def snapshot(self, name: str | None = None, memory: bool | None = None) -> Snapshot:
        return msgspec.convert(await self._ask("snapshot", name=name, memory=memory), Snapshot)

    async def rollback(self, name_or_id: str, memory: bool | None = None) -> None:
        await self._ask("rollback", snapshot=name_or_id, memory=memory)
        self.require_alive()

    async def fork(self, count: int, memory: bool | None = None) -> Sequence[Host | AgentEnvError]:
        outcomes = msgspec.convert(await self._ask("fork", count=count, memory=memory), list[Child])
        return [restored(one.fault) if one.fault is not None else await attach(self._node, one.id or "") for one in outcomes]

    async def _ask(self, call: str, **arguments: object) -> Any:
        """Has the owner do what only it can."""
        self.require_alive()
        return await ask(owner_of(self._record), call, self.id, **arguments)


def owner_of(record: SandboxRecord) -> Path:
    """The directory of the process that owns a sandbox."""
    return record.directory.parent


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
