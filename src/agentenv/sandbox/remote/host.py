"""One sandbox of a server, in the part that a handle needs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from agentenv.egress.denials import Denial
from agentenv.egress.policy import EgressPolicy
from agentenv.errors import AgentEnvError, InvalidState, NotFound, SandboxDied, Stage
from agentenv.guest import dial
from agentenv.isolation.contract import Capabilities, Exit, OomKill, Resources, Usage
from agentenv.node.control import Child, restored
from agentenv.node.portforward import LOOPBACK, PortForward
from agentenv.node.records import SandboxRequest, StorageKill
from agentenv.node.snapshots import Snapshot
from agentenv.sandbox.host import Host
from agentenv.sandbox.remote.client import ApiClient
from agentenv.sandbox.remote.tunnel import open_tunnel
from agentenv.sandbox.remote.wire import PREFIX, Ended, RemoteSandbox, Waited

T = TypeVar("T")


class RemoteMachine:
    """The way to the agent of a server's sandbox."""

    passes_descriptors = False

    def __init__(self, client: ApiClient, identifier: str) -> None:
        self._client = client
        self._id = identifier
        self._ready: socket.socket | None = None

    def dial(self) -> socket.socket:
        """A fresh connection to the agent: the one that `prepare` has made, if there is one. Raises as `open_tunnel`."""
        ready, self._ready = self._ready, None
        return ready or open_tunnel(self._client.address, self._id)

    async def prepare(self) -> None:
        """Makes the next connection ahead, so that `dial` need not wait for the network in the middle of an event loop."""
        self.forget()
        self._ready = await asyncio.to_thread(open_tunnel, self._client.address, self._id)

    def forget(self) -> None:
        """Closes a connection that was made ahead: it leads to what the sandbox was."""
        if self._ready is not None:
            self._ready.close()
            self._ready = None

    async def oom_kills(self) -> tuple[OomKill, ...]:
        return await self._call("oom_kills", tuple[OomKill, ...])

    async def process_limit_hits(self) -> int:
        return await self._call("process_limit_hits", int)

    async def _call(self, name: str, kind: type[T]) -> T:
        return await self._client.request("POST", f"{PREFIX}/sandboxes/{self._id}/calls/{name}", kind, {})


class RemoteHost:
    """A sandbox that a server owns. What it is now is known from the last answer; the server has the last word on each call."""

    def __init__(
        self,
        client: ApiClient,
        known: RemoteSandbox,
        request: SandboxRequest,
        adopt: Callable[[str], Awaitable[Host]],
    ) -> None:
        """`adopt` makes the host of a child by its id."""
        self.id = known.id
        self.request = request
        self.machine = RemoteMachine(client, known.id)
        self.failure: AgentEnvError | None = None
        self._client = client
        self._known = known
        self._adopt = adopt
        self._exit: Exit | None = None
        self._ports: PortForward | None = None

    @property
    def generation(self) -> int:
        return self._known.generation

    @property
    def state(self) -> str:
        return "dead" if self._exit is not None else self._known.state

    @property
    def timings(self) -> tuple[Stage, ...]:
        return self._known.timings

    @property
    def capabilities(self) -> Capabilities:
        return self._known.capabilities

    def require_alive(self) -> None:
        """As far as is known here; the server is not asked."""
        if self._exit is not None:
            raise self.failure or InvalidState(f"sandbox {self.id} is gone: {self._exit.reason}.", remedy="Create another one.")

    async def pause(self, to_disk: bool = False) -> None:
        self.machine.forget()
        await self._change("pause", to_disk=to_disk)

    async def resume(self) -> None:
        await self._change("resume")
        await self.machine.prepare()

    async def resize(self, resources: Resources) -> None:
        await self._call("resize", object, resources=resources)
        await self._refresh()

    async def usage(self) -> Usage:
        return await self._call("usage", Usage)

    async def storage_kills(self) -> tuple[StorageKill, ...]:
        return await self._call("storage_kills", tuple[StorageKill, ...])

    async def set_lifetime(self, seconds: float | None) -> None:
        await self._call("set_lifetime", object, seconds=seconds)

    async def host_port(self, port: int) -> tuple[str, int]:
        """A port of this machine, not of the server's: each connection to it becomes one through the tunnel."""
        self.require_alive()
        if self._ports is None:
            self._ports = PortForward()
        return LOOPBACK, await self._ports.forward(port, lambda wanted: dial(self.machine.dial(), wanted, pass_descriptor=False))

    async def set_network(self, policy: EgressPolicy) -> None:
        await self._call("set_network", object, policy=policy.to_dict())

    async def network_log(self) -> Sequence[Denial]:
        return await self._call("network_log", list[Denial])

    async def snapshot(self, name: str | None = None, memory: bool | None = None) -> Snapshot:
        return await self._call("snapshot", Snapshot, name=name, memory=memory)

    async def rollback(self, name_or_id: str, memory: bool | None = None) -> None:
        self.machine.forget()
        await self._change("rollback", snapshot=name_or_id, memory=memory)
        await self.machine.prepare()

    async def fork(self, count: int, memory: bool | None = None) -> Sequence[Host | AgentEnvError]:
        outcomes = await self._call("fork", list[Child], count=count, memory=memory)
        return [restored(one.fault) if one.fault is not None else await self._adopt(one.id or "") for one in outcomes]

    async def kill(self) -> Exit:
        if self._exit is None:
            try:
                ended = await self._client.request("DELETE", self._path, Ended)
            except NotFound:
                ended = Ended(Exit(None, None, "it was gone already"))
            await self._end(ended)
        assert self._exit is not None
        return self._exit

    async def wait(self) -> Exit:
        """Asks the server until the sandbox has ended; each request waits there for a while."""
        while self._exit is None:
            try:
                waited = await self._client.request("GET", f"{self._path}/end", Waited)
            except NotFound:
                waited = Waited(Ended(Exit(None, None, "its server does not know it any more")))
            if waited.ended is not None:
                await self._end(waited.ended)
        return self._exit

    async def _end(self, ended: Ended) -> None:
        self._exit = ended.exit
        if ended.fault is not None:
            fault = restored(ended.fault)
            # The server's node knows its machine by another name than we know the sandbox by.
            self.failure = SandboxDied(self.id, fault.reason, evidence=fault.evidence) if isinstance(fault, SandboxDied) else fault
        self.machine.forget()
        if self._ports is not None:
            await self._ports.close()

    async def _change(self, call: str, /, **arguments: object) -> None:
        """A call after which the sandbox is in another state or generation."""
        await self._call(call, object, **arguments)
        await self._refresh()

    async def _refresh(self) -> None:
        self._known = await self._client.request("GET", self._path, RemoteSandbox)
        self.request = replace(self.request, resources=self._known.resources)

    async def _call(self, call: str, kind: type[T], /, **arguments: object) -> T:
        self.require_alive()
        return await self._client.request("POST", f"{self._path}/calls/{call}", kind, arguments)

    @property
    def _path(self) -> str:
        return f"{PREFIX}/sandboxes/{self.id}"
