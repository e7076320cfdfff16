"""`agentenv gc`: removes what nothing needs any more, here or on a server."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

import typer

from agentenv.cli.output import JsonFlag, print_json
from agentenv.cli.server_access import ApiKey, Server, ask, chosen_server
from agentenv.node import Node
from agentenv.units import format_size


def gc(
    on_server: Annotated[bool, typer.Option("--on-server", help="On the server, also its snapshots of nobody and old log lines.")] = False,
    server: Server = None,
    api_key: ApiKey = None,
    as_json: JsonFlag = False,
) -> None:
    """Removes snapshot layers of nobody, outdated images of this machine's programs, and what dead processes left."""

    async def here() -> dict[str, Any]:
        async with await Node.open() as node:
            return asdict(await node.collect_garbage())

    remotely = on_server or server is not None
    report = ask(chosen_server(server, api_key), "POST", "/admin/gc") if remotely else asyncio.run(here())
    if as_json:
        print_json(report)
        return
    size = format_size(int(report.pop("bytes")))
    typer.echo(", ".join(f"{count} {what}" for what, count in report.items()) + f" removed, {size}")
