"""What a user's handle needs of the sandbox behind it: the node's own object has all of it, and others may too."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentenv.errors import AgentEnvError, Stage
from agentenv.isolation.contract import Exit, OomKill, Resources, Usage
from agentenv.node.records import SandboxRequest, StorageKill
from agentenv.node.snapshots import Snapshot


class HostMachine(Protocol):
    """The part of `agentenv.isolation.Machine` that a handle uses."""

    @property
    def passes_descriptors(self) -> bool: ...

    def dial(self) -> socket.socket: ...

    async def oom_kills(self) -> tuple[OomKill, ...]: ...

    async def process_limit_hits(self) -> int: ...


@runtime_checkable
class Remembering(Protocol):
    """A machine that can have started from another's memory; then it must be told that it is not the other."""

    @property
    def from_memory(self) -> bool: ...


class Host(Protocol):
    """One sandbox, as `agentenv.node.NodeSandbox` has it."""

    @property
    def id(self) -> str: ...

    @property
    def generation(self) -> int: ...

    @property
    def state(self) -> str: ...

    @property
    def request(self) -> SandboxRequest: ...

    @property
    def machine(self) -> HostMachine: ...

    @property
    def timings(self) -> tuple[Stage, ...]: ...

    @property
    def failure(self) -> AgentEnvError | None: ...

    def require_alive(self) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def resize(self, resources: Resources) -> None: ...

    async def usage(self) -> Usage: ...

    async def storage_kills(self) -> tuple[StorageKill, ...]: ...

    async def set_lifetime(self, seconds: float | None) -> None: ...

    async def host_port(self, port: int) -> tuple[str, int]: ...

    async def snapshot(self, name: str | None = None) -> Snapshot: ...

    async def rollback(self, name_or_id: str) -> None: ...

    async def fork(self, count: int) -> Sequence[Host | AgentEnvError]: ...

    async def kill(self) -> Exit: ...

    async def wait(self) -> Exit: ...
