"""`agentenv network`: what a sandbox may reach, and what it was refused."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from agentenv.cli import wishes
from agentenv.cli.lazy import new_app
from agentenv.cli.output import JsonFlag, console, print_json
from agentenv.cli.sandboxes import SandboxId
from agentenv.egress.denials import Denial
from agentenv.sandbox import AsyncSandbox

app = new_app("Changes what a sandbox may reach, and shows what it was refused.")
Rate = Annotated[str | None, typer.Option(help="So much a second, such as 10MB/s or 100Mbit/s.")]


@app.command("set")
def set_rules(
    sandbox: SandboxId,
    allow: wishes.Allow = None,
    deny: wishes.Deny = None,
    internet: wishes.Internet = True,
    up: Rate = None,
    down: Rate = None,
) -> None:
    """Replaces all rules of a sandbox that runs; what is denied from now on ends at once."""
    rules = {**wishes.rules(allow, deny, internet), "bandwidth": {"up": up, "down": down}}

    async def run() -> None:
        await (await AsyncSandbox.connect(sandbox)).set_network(rules)

    asyncio.run(run())


@app.command("log")
def log(sandbox: SandboxId, as_json: JsonFlag = False) -> None:
    """Shows what a sandbox was refused, the last 500 times, the oldest first."""

    async def run() -> Sequence[Denial]:
        return await (await AsyncSandbox.connect(sandbox)).network_log()

    denials = asyncio.run(run())
    if as_json:
        print_json([asdict(denial) for denial in denials])
        return
    from rich.table import Table

    table = Table(box=None)
    for title in ("time", "destination", "protocol", "rule"):
        table.add_column(title)
    for denial in denials:
        place = f"{denial.destination}:{denial.port}" if denial.port else denial.destination
        table.add_row(dt.datetime.fromtimestamp(denial.time).strftime("%H:%M:%S"), place, denial.protocol, denial.rule)
    console().print(table)
