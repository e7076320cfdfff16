"""A server in the part of a node: makes sandboxes there, finds them, and keeps a lease so that they end when this process does."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from agentenv.errors import InfrastructureError, NotFound
from agentenv.isolation.contract import Exit
from agentenv.node.records import SandboxRequest
from agentenv.node.snapshots import Snapshot
from agentenv.sandbox.host import Host
from agentenv.sandbox.remote.address import ServerAddress
from agentenv.sandbox.remote.client import ApiClient
from agentenv.sandbox.remote.host import RemoteHost
from agentenv.sandbox.remote.wire import PREFIX, Ended, Lease, LogLine, Logs, RemoteSandbox
from agentenv.sandbox.results import SandboxInfo

_RENEWALS_PER_LEASE = 3
"""How often a lease is renewed before it would end: so many renewals in a row may fail."""


@dataclass(slots=True)
class _Held:
    """The lease under which this node's sandboxes live, and the task that renews it."""

    lease: Lease
    renewing: asyncio.Task[None]


class RemoteNode:
    """The sandboxes of one server, for one event loop."""

    def __init__(self, address: ServerAddress) -> None:
        self._client = ApiClient(address)
        self._held: _Held | None = None
        self._leasing = asyncio.Lock()

    @property
    def address(self) -> ServerAddress:
        """The server, and the key."""
        return self._client.address

    async def create(self, request: SandboxRequest, *, leased: bool = True) -> RemoteHost:
        """Starts a sandbox on the server. If `leased`, it ends when this process has not been heard of for the time of a lease.

        Raises what `Node.create` raises, `QuotaExceeded`, `Unauthenticated`.
        """
        headers = {"X-AgentENV-Lease": (await self._lease()).id} if leased else {}
        known = await self._client.request("POST", f"{PREFIX}/sandboxes", RemoteSandbox, request, headers=headers)
        return await self._host(known, request)

    async def attach(self, identifier: str) -> RemoteHost:
        """A sandbox that runs there already. Raises `NotFound`."""
        known = await self._client.request("GET", f"{PREFIX}/sandboxes/{identifier}", RemoteSandbox)
        request = SandboxRequest(image=known.image, snapshot=known.snapshot, resources=known.resources, metadata=known.metadata)
        return await self._host(known, request)

    async def infos(self) -> list[SandboxInfo]:
        """Every live sandbox of the key's tenant, the oldest first."""
        return [known.info() for known in await self._client.request("GET", f"{PREFIX}/sandboxes", list[RemoteSandbox])]

    async def kill(self, identifier: str) -> Exit:
        """Ends any sandbox of the key's tenant. Raises `NotFound`."""
        return (await self._client.request("DELETE", f"{PREFIX}/sandboxes/{identifier}", Ended)).exit

    async def logs(self, identifier: str) -> list[LogLine]:
        """What happened to a sandbox, the oldest first. Raises `NotFound`."""
        return (await self._client.request("GET", f"/v2/sandboxes/{identifier}/logs?limit=1000", Logs)).logs

    async def snapshots(self) -> list[Snapshot]:
        """Every snapshot of the key's tenant, a parent before its children."""
        return await self._client.request("GET", f"{PREFIX}/snapshots", list[Snapshot])

    async def delete_snapshot(self, name_or_id: str) -> None:
        """Deletes a snapshot. Raises `NotFound`, `InvalidState` while it has children."""
        await self._client.request("DELETE", f"{PREFIX}/snapshots/{name_or_id}", object)

    async def close(self) -> None:
        """Gives the lease back, which ends the sandboxes made under it, and closes the connections. Idempotent."""
        held, self._held = self._held, None
        if held is not None:
            held.renewing.cancel()
            await asyncio.wait({held.renewing})
            # A server that cannot be reached notices by itself that nobody renews.
            with contextlib.suppress(InfrastructureError):
                await self._client.request("DELETE", f"{PREFIX}/leases/{held.lease.id}", object)
        await self._client.close()

    async def _host(self, known: RemoteSandbox, request: SandboxRequest) -> RemoteHost:
        host = RemoteHost(self._client, known, request, self._adopt)
        if known.state == "running":
            await host.machine.prepare()
        return host

    async def _adopt(self, identifier: str) -> Host:
        return await self.attach(identifier)

    async def _lease(self) -> Lease:
        async with self._leasing:
            if self._held is None or self._held.renewing.done():
                lease = await self._client.request("POST", f"{PREFIX}/leases", Lease)
                self._held = _Held(lease, asyncio.create_task(self._renew(lease), name="agentenv lease"))
            return self._held.lease

    async def _renew(self, lease: Lease) -> None:
        """Until the server has forgotten the lease: then the sandboxes under it are gone, and the next one needs another."""
        while True:
            await asyncio.sleep(lease.seconds / _RENEWALS_PER_LEASE)
            try:
                await self._client.request("PUT", f"{PREFIX}/leases/{lease.id}", object)
            except InfrastructureError:
                continue  # a server that is back in time still knows the lease
            except NotFound:
                return
