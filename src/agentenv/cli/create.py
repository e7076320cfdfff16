"""`agentenv create`: a sandbox that outlives the command."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from agentenv.cli import where, wishes
from agentenv.cli.output import JsonFlag, print_json
from agentenv.node import Node
from agentenv.node.keeper import create_detached
from agentenv.node.records import SandboxRequest
from agentenv.node.templates import SCHEME
from agentenv.sandbox import AsyncSandbox
from agentenv.sandbox.owners import host_of, startup_of
from agentenv.sandbox.startup import run_startup
from agentenv.sandbox.wishes import network_request, resources_of


def create(
    image: wishes.Image = None,
    snapshot: wishes.FromSnapshot = None,
    files_only: wishes.FilesOnly = False,
    isolation: wishes.Isolation = "auto",
    cpu: wishes.Cpu = None,
    memory: wishes.Memory = None,
    storage: wishes.Storage = None,
    pids: wishes.Pids = None,
    net: wishes.Net = False,
    port: wishes.Port = None,
    allow: wishes.Allow = None,
    deny: wishes.Deny = None,
    internet: wishes.Internet = True,
    env: wishes.Env = None,
    metadata: Annotated[list[str] | None, typer.Option("--metadata", "-m", help="NAME=VALUE to find it by; may be given again.")] = None,
    timeout: Annotated[str, typer.Option(help="Its lifetime: 30s, 10m, 2h; or `none` for no end.")] = "1h",
    as_json: JsonFlag = False,
) -> None:
    """Starts a sandbox and prints its id. It stays until it is killed or its lifetime is over."""
    request = SandboxRequest(
        image=image,
        snapshot=snapshot,
        memory=False if files_only else None,
        isolation=isolation,
        resources=resources_of(wishes.resources(cpu, memory, storage, pids)),
        network=network_request(wishes.network(net, port, **wishes.rules(allow, deny, internet))),
        env=wishes.environment(env),
        metadata=wishes.environment(metadata, option="--metadata"),
        lifetime=None if timeout == "none" else wishes.seconds(timeout, "--timeout"),
    )
    identifier, owner_pid, expires = asyncio.run(_create(request))
    if as_json:
        print_json({"id": identifier, "owner_pid": owner_pid, "expires": expires})
    else:
        typer.echo(identifier)


async def _create(request: SandboxRequest) -> tuple[str, int | None, float | None]:
    owner = await where.owner()
    if isinstance(owner, Node):
        record = await create_detached(request)
        if request.image is not None and request.image.startswith(SCHEME) and request.snapshot is None:
            await _start_template(owner, record.id, request.image, record.snapshot)
        return record.id, record.owner_pid, record.expires
    made = await owner.create(request, leased=False)
    expires = next((info.end_at for info in await owner.infos() if info.id == made.id), None)
    return made.id, None, expires.timestamp() if expires else None


async def _start_template(owner: Node, identifier: str, template: str, snapshot: str | None) -> None:
    """Runs what the template's sandboxes run; where that fails, the sandbox ends."""
    sandbox = AsyncSandbox(await host_of(owner, identifier), owner)
    try:
        await run_startup(sandbox.commands, await startup_of(owner, template, snapshot))
    except BaseException:
        await sandbox.kill()
        raise
