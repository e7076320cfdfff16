"""`agentenv template`: what sandboxes start from, on this machine or on a server."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Annotated

import msgspec
import typer

from agentenv.cli import server_templates, where
from agentenv.cli.build import NoCache, build, ignore, tell
from agentenv.cli.lazy import new_app
from agentenv.cli.output import JsonFlag, console, print_json
from agentenv.errors import AgentEnvError, CapabilityError, InvalidState
from agentenv.node import Node
from agentenv.node.templates import TemplateRecord, Templates, split_name
from agentenv.paths import state_home
from agentenv.templates import rebuild_template
from agentenv.templates.cache import prune as prune_cache
from agentenv.units import format_size

app = new_app("Builds, lists, shows, names and removes templates.")
app.command("build")(build)


def complete_template() -> list[str]:
    """Names of templates, for the shell's completion; none where a server does not answer."""
    try:
        if (server := where.server()) is None:
            return [record.label for record in Templates(state_home()).all()]
        return [name for one in server_templates.all_of(server) for name in one["names"]]
    except AgentEnvError:
        return []


TemplateName = Annotated[str, typer.Argument(help="NAME or NAME:TAG.", autocompletion=complete_template)]


@app.command("ls")
def ls(as_json: JsonFlag = False) -> None:
    """Lists the templates."""
    if (server := where.server()) is not None:
        found = server_templates.all_of(server)
        if as_json:
            print_json(found)
        else:
            server_templates.show_all(found)
        return
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
    """Shows what sandboxes of a template get; of a server's, its builds and tags."""
    if (server := where.server()) is not None:
        found = server_templates.find(server, name)
        if as_json:
            print_json(found)
        else:
            server_templates.show_one(found)
        return
    record = Templates(state_home()).find(name)
    if as_json:
        print_json(msgspec.to_builtins(record))
    else:
        _show(record)


def _show(record: TemplateRecord) -> None:
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
    """Removes templates; what sandboxes use stays until they end, results of steps until `template prune`.

    On a server NAME is a template with all its builds, NAME:TAG a tag alone.
    """
    server = where.server()
    for name in names:
        if server is not None:
            typer.echo(server_templates.remove(server, name))
        else:
            typer.echo(f"{Templates(state_home()).delete(name).label} removed")


@app.command("tag")
def tag(
    name: TemplateName,
    tags: Annotated[list[str], typer.Argument(help="Further tags for the same build.")],
    as_json: JsonFlag = False,
) -> None:
    """Lets further tags mean what NAME[:TAG] means now."""
    template = name.partition(":")[0]
    if (server := where.server()) is not None:
        server_templates.tag(server, name, tags)
    else:
        templates = Templates(state_home())
        record = templates.find(name)
        template = record.name
        for one in tags:
            split_name(f"{template}:{one}")
        for one in tags:
            templates.put(msgspec.structs.replace(record, tag=one))
    labels = [f"{template}:{one}" for one in tags]
    if as_json:
        print_json(labels)
    else:
        typer.echo("\n".join(f"{label} is {name} now" for label in labels))


@app.command("logs")
def logs(
    name: TemplateName,
    build_id: Annotated[str | None, typer.Option("--build", help="This build (`template show`) and not the latest.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Shows what a build on a server said."""
    server = where.server()
    if server is None:
        raise CapabilityError("only a server keeps what builds said.", remedy="`agentenv build` prints it while it builds here.")
    lines = server_templates.log_of(server, name, build_id)
    if as_json:
        print_json(list(lines))
        return
    for line in lines:
        typer.echo(f"{line['timestamp'][:19]}  {line['message']}")


@app.command("rebuild")
def rebuild(name: TemplateName, no_cache: NoCache = False, as_json: JsonFlag = False) -> None:
    """Builds a template from where it was built the last time, on what its base image means now."""
    if where.server() is not None:
        raise CapabilityError("a server does not keep what it built from.", remedy=f"Build it again: `agentenv build DIRECTORY -t {name}`.")
    record = Templates(state_home()).find(name)
    built = asyncio.run(_rebuild(record, cache=not no_cache, quiet=as_json))
    if as_json:
        print_json(msgspec.to_builtins(built))
    else:
        typer.echo(f"{built.label} is built anew ({'the same files' if built.snapshot == record.snapshot else 'other files'} as before)")


async def _rebuild(record: TemplateRecord, *, cache: bool, quiet: bool) -> TemplateRecord:
    async with await Node.open() as node:
        return await rebuild_template(node, record, cache=cache, log=ignore if quiet else tell)


@app.command("prune")
def prune(as_json: JsonFlag = False) -> None:
    """Removes the results of steps that no template is made of; they would be done anew when they are needed again."""
    if where.server() is not None or (state_home() / "server").exists():
        # What a server's templates are made of, only its database tells.
        raise InvalidState("what a server has built, it clears up itself.", remedy="Run `agentenv gc --on-server`.")

    async def run() -> list[str]:
        async with await Node.open() as node:
            return [snapshot.id for snapshot in await prune_cache(node)]

    removed = asyncio.run(run())
    if as_json:
        print_json(removed)
    else:
        typer.echo(f"{len(removed)} results of steps removed")
