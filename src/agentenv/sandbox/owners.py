"""Who owns sandboxes: the node of this process, or a server in its place. What a handle needs of either, by one name."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from agentenv.node import Node
from agentenv.node.templates import Startup
from agentenv.sandbox.attached import attach
from agentenv.sandbox.host import Host
from agentenv.sandbox.remote.address import ServerAddress
from agentenv.sandbox.results import SandboxInfo

if TYPE_CHECKING:
    from agentenv.sandbox.remote.node import RemoteNode

Owner: TypeAlias = "Node | RemoteNode"


def open_remote(server: ServerAddress) -> RemoteNode:
    """The node that a server plays. What it needs is loaded here, since most processes never speak to a server."""
    from agentenv.sandbox.remote.node import RemoteNode

    return RemoteNode(server)


async def host_of(owner: Owner, sandbox_id: str) -> Host:
    """A sandbox that there is already. Raises `NotFound`."""
    return await attach(owner, sandbox_id) if isinstance(owner, Node) else await owner.attach(sandbox_id)


async def infos(owner: Owner) -> list[SandboxInfo]:
    """Every sandbox of an AGENTENV_HOME, or of a key's tenant on a server, the oldest first."""
    if isinstance(owner, Node):
        return [SandboxInfo.of(record) for record in await asyncio.to_thread(owner.list)]
    return await owner.infos()


async def startup_of(owner: Owner, template: str, snapshot: str | None) -> Startup:
    """What a handle has to run in a fresh sandbox of that template: nothing where a server does it, or `snapshot` holds what was started.

    Raises `NotFound`.
    """
    if isinstance(owner, Node):
        record = await asyncio.to_thread(owner.templates.find, template)
        return Startup() if snapshot is not None and snapshot == record.warm else record.startup
    return Startup()
