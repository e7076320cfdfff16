"""`agentenv build`: a template from a Dockerfile, here or on a server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agentenv.cli import where, wishes
from agentenv.cli.output import JsonFlag, print_json
from agentenv.isolation.contract import Resources
from agentenv.node import Node
from agentenv.node.templates import Startup, TemplateRecord
from agentenv.sandbox.wishes import resources_of
from agentenv.templates import BuildLine, Options, Wanted, build_template, recipes
from agentenv.templates.remote import RemoteOrder, build_on_server

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
    log = ignore if quiet else tell
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


def tell(line: BuildLine) -> None:
    """Prints a line of a build, for people."""
    color = {"warn": typer.colors.YELLOW, "error": typer.colors.RED}.get(line.level)
    heading = line.message.startswith("[")
    typer.secho(line.message if heading else f"  {line.message}", fg=color, bold=heading, err=True)


def ignore(line: BuildLine) -> None:
    """Prints nothing, for those who read JSON."""


def _name_of(directory: Path) -> str:
    return directory.resolve().name.lower()
