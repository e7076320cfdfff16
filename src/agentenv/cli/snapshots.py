"""`agentenv snapshot`: take, list and delete snapshots, and go back to one."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer

from agentenv.cli import where, wishes
from agentenv.cli.lazy import new_app
from agentenv.cli.output import JsonFlag, console, print_json
from agentenv.cli.sandboxes import SandboxId
from agentenv.node.snapshots import Snapshot
from agentenv.templates.cache import MARK as BUILD_STEP
from agentenv.units import format_size

app = new_app("Takes, lists and deletes snapshots of sandboxes, and goes back to one.")


async def _all() -> list[Snapshot]:
    return await (await where.owner()).snapshots()


def complete_snapshot() -> list[str]:
    """Names of snapshots, for the shell's completion."""
    return [snapshot.label for snapshot in asyncio.run(_all())]


SnapshotName = Annotated[str, typer.Argument(help="A snapshot's name or id.", autocompletion=complete_snapshot)]


@app.command("create")
def create(
    sandbox: SandboxId,
    name: Annotated[str | None, typer.Option(help="Call it so; without a name it has its id.")] = None,
    memory: wishes.KeepMemory = None,
    as_json: JsonFlag = False,
) -> None:
    """Keeps a sandbox as it is now; `agentenv shell --snapshot NAME` starts from it."""

    async def run() -> Snapshot:
        return await (await where.sandbox(sandbox)).snapshot(name, memory=memory)

    taken = asyncio.run(run())
    if as_json:
        print_json(msgspec.to_builtins(taken))
    else:
        typer.echo(f"{taken.label} ({_details(taken)})")


def _details(snapshot: Snapshot) -> str:
    content = f"files and memory of {snapshot.backend}" if snapshot.memory else "files"
    named = [snapshot.id] if snapshot.name else []
    return ", ".join([*named, content, format_size(snapshot.size)])


@app.command("ls")
def ls(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also the results of template builds' steps.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Shows snapshots as a tree."""
    snapshots = [snapshot for snapshot in asyncio.run(_all()) if everything or BUILD_STEP not in snapshot.metadata]
    if as_json:
        print_json([msgspec.to_builtins(snapshot) for snapshot in snapshots])
        return
    if not snapshots:
        typer.echo("There is no snapshot yet. `agentenv snapshot create SANDBOX` takes one.")
        return
    from rich.tree import Tree

    roots: dict[str, Tree] = {}
    branches: dict[str, Tree] = {}
    for snapshot in snapshots:
        above = branches[snapshot.parent] if snapshot.parent in branches else roots.setdefault(snapshot.image, Tree(snapshot.image))
        branches[snapshot.id] = above.add(f"{snapshot.label}  [dim]{_details(snapshot)}[/dim]")
    for tree in roots.values():
        console().print(tree)


@app.command("rm")
def rm(names: Annotated[list[str], typer.Argument(help="Names or ids of snapshots.", autocompletion=complete_snapshot)]) -> None:
    """Deletes snapshots that have no children; what live sandboxes still use stays until they end."""

    async def run() -> None:
        owner = await where.owner()
        for name in names:
            await owner.delete_snapshot(name)
            typer.echo(f"{name} deleted")

    asyncio.run(run())


@app.command("rollback")
def rollback(sandbox: SandboxId, snapshot: SnapshotName, memory: wishes.KeepMemory = None) -> None:
    """Puts a sandbox back to a snapshot: to its files, and to its processes where it holds them."""

    async def run() -> None:
        await (await where.sandbox(sandbox)).rollback(snapshot, memory=memory)

    asyncio.run(run())
