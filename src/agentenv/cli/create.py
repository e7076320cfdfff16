"""`agentenv create`: a sandbox that outlives the command."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from agentenv.cli import wishes
from agentenv.cli.output import JsonFlag, print_json
from agentenv.node.keeper import create_detached
from agentenv.node.records import SandboxRequest
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
    record = asyncio.run(create_detached(request))
    if as_json:
        print_json({"id": record.id, "owner_pid": record.owner_pid, "expires": record.expires})
    else:
        typer.echo(record.id)
