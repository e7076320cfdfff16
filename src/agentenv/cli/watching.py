"""`agentenv metrics`, `logs` and `port-forward`: look at a sandbox from outside, and into one of its ports."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agentenv.cli import where
from agentenv.cli.output import JsonFlag, console, print_json
from agentenv.cli.sandboxes import SandboxId
from agentenv.isolation.contract import Usage
from agentenv.monitoring.lines import read_lines
from agentenv.monitoring.machine_log import machine_log_file
from agentenv.node import Node
from agentenv.units import format_duration, format_size


def metrics(sandbox: SandboxId, as_json: JsonFlag = False) -> None:
    """Shows what a sandbox uses now."""

    async def run() -> Usage:
        return await (await where.sandbox(sandbox)).metrics()

    usage = asyncio.run(run())
    if as_json:
        print_json(asdict(usage))
        return
    from rich.table import Table

    table = Table("what", "now", show_header=False)
    for name, value in asdict(usage).items():
        if value is not None:
            table.add_row(name.replace("_", " "), _shown(name, value))
    console().print(table)


def _shown(name: str, value: float) -> str:
    if name.startswith(("memory", "storage")) and not name.endswith("pressure"):
        return format_size(int(value))
    if name.endswith("seconds"):
        return format_duration(value)
    return f"{value:g} %" if name.endswith("pressure") else f"{value:g}"


def port_forward(
    sandbox: SandboxId,
    ports: Annotated[list[int], typer.Argument(help="Ports of the sandbox.", min=1, max=65535)],
    as_json: JsonFlag = False,
) -> None:
    """Makes ports of a sandbox reachable on this machine's loopback until Ctrl-C."""

    async def run() -> None:
        opened = await where.sandbox(sandbox)
        places = {port: await opened.get_host(port) for port in ports}
        if as_json:
            print_json({str(port): place for port, place in places.items()})
        else:
            typer.echo("\n".join(f"port {port} is at {place}" for port, place in places.items()))
        over = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, over.set)
        await over.wait()

    asyncio.run(run())


def logs(sandbox: SandboxId, as_json: JsonFlag = False) -> None:
    """Shows what happened to a sandbox, the oldest first; also to one that is gone, as long as its log is kept."""
    lines = asyncio.run(_lines(sandbox))
    if as_json:
        print_json(lines)
        return
    for line in lines:
        fields = " ".join(f"{name}={value}" for name, value in line["fields"].items())
        typer.echo(f"{line['timestamp']}  {line['message']}  {fields}".rstrip())
    if not lines:
        typer.echo(f"There is no line about {sandbox}.", err=True)
        raise typer.Exit(1)


async def _lines(sandbox: str) -> list[dict[str, Any]]:
    owner = await where.owner()
    if not isinstance(owner, Node):
        return [msgspec.to_builtins(line) for line in await owner.logs(sandbox)]
    found = await asyncio.to_thread(_read_log, owner.home)
    return [line for line in found if line["fields"].get("id") == sandbox]


def _read_log(home: Path) -> list[dict[str, Any]]:
    """The machine's log, as a server tells its own."""
    lines = []
    for said in read_lines(machine_log_file(home)):
        fields = {name: value for name, value in said.items() if name not in ("time", "event")}
        lines.append({"timestamp": said.get("time"), "message": said.get("event"), "fields": fields})
    return lines
