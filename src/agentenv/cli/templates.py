"""`agentenv build` and `agentenv template`: what sandboxes start from, built from Dockerfiles."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agentenv.cli import where, wishes
from agentenv.cli.lazy import new_app
from agentenv.cli.output import JsonFlag, console, print_json
from agentenv.errors import InvalidState
from agentenv.isolation.contract import Resources
from agentenv.node import Node
from agentenv.node.templates import Startup, TemplateRecord, Templates
from agentenv.paths import state_home
from agentenv.sandbox.wishes import resources_of
from agentenv.templates import BuildLine, Options, Wanted, build_template, delete_template, rebuild_template, recipes
from agentenv.templates.cache import prune as prune_cache
from agentenv.templates.remote import RemoteOrder, build_on_server
from agentenv.units import format_size

app = new_app("Lists, shows, builds anew and removes templates.")


def complete_template() -> list[str]:
    """Names of templates, for the shell's completion."""
    return [record.label for record in Templates(state_home()).all()]


TemplateName = Annotated[str, typer.Argument(help="NAME or NAME:TAG.", autocompletion=complete_template)]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Do every step anew.")]


def build(
    directory: Annotated[Path, typer.Argument(help="The directory that COPY takes files of.")] = Path(),
    tag: Annotated[str | None, typer.Option("--tag", "-t", help="Call the template NAME or NAME:TAG; else like the directory.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="The Dockerfile, by default the directory's.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Build one of AgentENV's own recipes: code-interpreter.")] = None,
    arg: Annotated[list[str] | None, typer.Option("--build-arg", help="NAME=VALUE for an ARG; may be given again.")] = None,
    target: Annotated[str | None, typer.Option(help="Build up to this stage.")] = None,
    no_cache: NoCache = False,
    isolation: wishes.Isolation = "auto",
    start: Annotated[str | None, typer.Option(help="A command that runs in each sandbox from its beginning.")] = None,
    ready: Annotated[str | None, typer.Option(help="A command that succeeds when the start command is ready.")] = None,
    cpu: wishes.Cpu = None,
    memory: wishes.Memory = None,
    no_network: Annotated[bool, typer.Option("--no-network", help="Let commands of the build reach nothing outside.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Builds a template from a Dockerfile, each step in a sandbox; what was done before is not done again."""
    limits = resources_of(wishes.resources(cpu, memory, None, None), pids=None)
    options = Options(
        isolation=isolation,
        args=wishes.environment(arg, option="--build-arg"),
        target=target,
        cache=not no_cache,
        network=not no_network,
        resources=limits if cpu or memory else Resources(),
    )
    wanted = Wanted(Startup(command=start, ready=ready), limits)
    if recipe is not None:
        found = recipes.find(recipe)
        directory, file, wanted = found.directory, found.directory / "Dockerfile", Wanted(found.startup, limits)
        tag = tag or recipe
    name, quiet = tag or _name_of(directory), as_json
    made = asyncio.run(_build(directory, name, file, options, wanted, quiet=quiet))
    if as_json:
        print_json(msgspec.to_builtins(made))
    elif isinstance(made, TemplateRecord):
        typer.echo(f"{made.label} is built: `agentenv shell --image template:{made.label}`")
    else:
        typer.echo(f"{name} is built on the server as {made['templateID']}: `agentenv shell --image template:{name}`")


async def _build(
    directory: Path, name: str, file: Path | None, options: Options, wanted: Wanted, *, quiet: bool
) -> TemplateRecord | dict[str, Any]:
    """Builds here, or on the server that commands act on."""
    log = _quiet if quiet else _tell
    asked = await where.owner()
    if isinstance(asked, Node):
        return await build_template(directory, name, node=asked, dockerfile=file, options=options, wanted=wanted, log=log)
    order = RemoteOrder(
        directory,
        file or directory / "Dockerfile",
        name,
        options.args,
        options.target,
        options.cache,
        wanted.startup.command,
        wanted.startup.ready,
        wanted.resources,
    )
    return await build_on_server(asked.address, order, log)


def _tell(line: BuildLine) -> None:
    color = {"warn": typer.colors.YELLOW, "error": typer.colors.RED}.get(line.level)
    heading = line.message.startswith("[")
    typer.secho(line.message if heading else f"  {line.message}", fg=color, bold=heading, err=True)


def _quiet(line: BuildLine) -> None:
    """For those who read JSON."""


def _name_of(directory: Path) -> str:
    return directory.resolve().name.lower()


@app.command("ls")
def ls(as_json: JsonFlag = False) -> None:
    """Lists the templates."""
    records = Templates(state_home()).all()
    if as_json:
        print_json([msgspec.to_builtins(record) for record in records])
    elif records:
        from rich.table import Table

        table = Table("name", "base", "built", "starts", "snapshot")
        for record in records:
            built = dt.datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M")
            table.add_row(record.label, record.base, built, record.startup.command or "", record.snapshot)
        console().print(table)
    else:
        typer.echo("There is no template yet. `agentenv build DIRECTORY` makes one of a Dockerfile.")


@app.command("show")
def show(name: TemplateName, as_json: JsonFlag = False) -> None:
    """Shows what sandboxes of a template get."""
    record = Templates(state_home()).find(name)
    if as_json:
        print_json(msgspec.to_builtins(record))
        return
    rows = {
        "name": record.label,
        "base": record.base,
        "user": record.user,
        "directory": record.cwd,
        "starts": record.startup.command or "nothing",
        "ready when": record.startup.ready or ("it runs" if record.startup.command else ""),
        "started process": "kept in memory" if record.warm else "",
        "cpu": record.resources.cpu,
        "memory": format_size(record.resources.memory) if record.resources.memory else None,
        "snapshot": record.snapshot,
        "built from": record.source.get("dockerfile"),
        **{f"env {key}": value for key, value in record.env.items()},
        **record.facts,
    }
    for key, value in rows.items():
        if value not in (None, ""):
            typer.echo(f"{key:16} {value}")


@app.command("rm")
def rm(names: Annotated[list[str], typer.Argument(help="NAME or NAME:TAG.", autocompletion=complete_template)]) -> None:
    """Removes templates; what sandboxes use stays until they end, results of steps until `template prune`."""

    async def run() -> None:
        async with await Node.open() as node:
            for name in names:
                record = await delete_template(node, name)
                typer.echo(f"{record.label} removed")

    asyncio.run(run())


@app.command("rebuild")
def rebuild(name: TemplateName, no_cache: NoCache = False, as_json: JsonFlag = False) -> None:
    """Builds a template from where it was built the last time, on what its base image means now."""
    record = Templates(state_home()).find(name)
    built = asyncio.run(_rebuild(record, cache=not no_cache, quiet=as_json))
    if as_json:
        print_json(msgspec.to_builtins(built))
    else:
        typer.echo(f"{built.label} is built anew ({'the same files' if built.snapshot == record.snapshot else 'other files'} as before)")


async def _rebuild(record: TemplateRecord, *, cache: bool, quiet: bool) -> TemplateRecord:
    async with await Node.open() as node:
        return await rebuild_template(node, record, cache=cache, log=_quiet if quiet else _tell)


@app.command("prune")
def prune(as_json: JsonFlag = False) -> None:
    """Removes the results of steps that no template is made of; they would be done anew when they are needed again."""
    if (state_home() / "server").exists():
        # What a server's templates are made of, only its database tells.
        raise InvalidState(f"{state_home()} is a server's.", remedy="Run `agentenv gc --on-server`, which knows its templates too.")

    async def run() -> list[str]:
        async with await Node.open() as node:
            return [snapshot.id for snapshot in await prune_cache(node)]

    removed = asyncio.run(run())
    if as_json:
        print_json(removed)
    else:
        typer.echo(f"{len(removed)} results of steps removed")
