"""The commands on sandboxes: make one, go into it, run something in it, list, fork, freeze and end them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from agentenv.cli import terminal, where, wishes
from agentenv.cli.lazy import new_app
from agentenv.cli.output import JsonFlag, console, error_data, print_json
from agentenv.errors import AgentEnvError
from agentenv.node import Node
from agentenv.node.keeper import resume_detached
from agentenv.sandbox import AsyncSandbox, SandboxInfo
from agentenv.sandbox.attached import find_record


async def _infos() -> list[SandboxInfo]:
    return await AsyncSandbox.list(node=await where.owner())


def complete_sandbox() -> list[str]:
    """The ids of the sandboxes that run now, for the shell's completion."""
    return [info.id for info in asyncio.run(_infos())]


SandboxId = Annotated[str, typer.Argument(help="A sandbox's id (`agentenv ls`).", autocompletion=complete_sandbox)]
User = Annotated[str | None, typer.Option("--user", "-u", help="As this user of the sandbox.")]
Cwd = Annotated[str | None, typer.Option("--cwd", "-w", help="In this directory of the sandbox.")]


def shell(
    sandbox: Annotated[
        str | None, typer.Argument(help="A sandbox that runs; without it a new one.", autocompletion=complete_sandbox)
    ] = None,
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
    env: wishes.Env = None,
    user: User = None,
    cwd: Cwd = None,
) -> None:
    """Opens a shell in a new sandbox, which ends with it, or in one that runs."""

    async def inside() -> int:
        if sandbox is not None:
            return await _shell_in(await where.sandbox(sandbox), user, cwd)
        made = await AsyncSandbox.create(
            image,
            snapshot=snapshot,
            memory=False if files_only else None,
            isolation=isolation,
            resources=wishes.resources(cpu, memory, storage, pids),
            network=wishes.network(net, port),
            env=wishes.environment(env),
            node=await where.owner(),
        )
        async with made:
            if sys.stdin.isatty():
                console().print(f"[dim]sandbox {made.id}; `agentenv fork {made.id}` in another terminal forks it[/dim]")
            for number in port or []:
                console().print(f"[dim]port {number} is at {await made.get_host(number)}[/dim]")
            return await _shell_in(made, user, cwd)

    raise typer.Exit(asyncio.run(inside()))


async def _shell_in(sandbox: AsyncSandbox, user: str | None, cwd: str | None) -> int:
    if sys.stdin.isatty() and sys.stdout.isatty():
        return await terminal.join(await sandbox.pty.create(terminal.size(), user=user, cwd=cwd))
    return await _run(sandbox, "if command -v bash >/dev/null; then exec bash; else exec sh; fi", stdin=True, user=user, cwd=cwd)


async def _run(
    sandbox: AsyncSandbox,
    command: str | Sequence[str],
    *,
    stdin: bool,
    user: str | None = None,
    cwd: str | None = None,
    envs: dict[str, str] | None = None,
    timeout: float | None = None,
) -> int:
    """Runs a command with our own input, output and exit code; the command ends when we are interrupted."""
    handle = await sandbox.commands.run(command, background=True, stdin=stdin, user=user, cwd=cwd, envs=envs, timeout=timeout)
    feeding = asyncio.create_task(terminal.forward_input(handle, sys.stdin.fileno())) if stdin else None
    try:
        result = await handle.wait(on_stdout=lambda text: _print(sys.stdout, text), on_stderr=lambda text: _print(sys.stderr, text))
    except asyncio.CancelledError:
        await handle.kill()
        raise
    finally:
        if feeding is not None:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
    return result.exit_code


def _print(stream: Any, text: str) -> None:
    stream.write(text)
    stream.flush()


exec_app = new_app()


@exec_app.command("exec", context_settings={"allow_interspersed_args": False})
def execute(
    sandbox: SandboxId,
    command: Annotated[list[str], typer.Argument(help="The program and its arguments; one word with spaces is run by the shell.")],
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Pass our standard input on.")] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="On a terminal of its own.")] = False,
    user: User = None,
    cwd: Cwd = None,
    env: wishes.Env = None,
    timeout: Annotated[str | None, typer.Option(help="End it after this long: 30s, 5m.")] = None,
) -> None:
    """Runs a command in a sandbox and ends with its exit code."""
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise typer.BadParameter("name the program to run")
    line: str | list[str] = words[0] if len(words) == 1 else words
    limit = wishes.seconds(timeout, "--timeout")
    if tty:
        terminal.require()

    async def run() -> int:
        attached = await where.sandbox(sandbox)
        envs = wishes.environment(env)
        if tty:
            return await terminal.join(await attached.pty.create(terminal.size(), cmd=line, user=user, cwd=cwd, envs=envs, timeout=limit))
        return await _run(attached, line, stdin=interactive, user=user, cwd=cwd, envs=envs, timeout=limit)

    raise typer.Exit(asyncio.run(run()))


def ls(as_json: JsonFlag = False) -> None:
    """Lists the sandboxes of this machine or of a server, those paused to the disk too."""
    found = asyncio.run(_infos())
    if as_json:
        print_json([asdict(info) for info in found])
    elif found:
        _print_table(found)
    else:
        typer.echo("There is no sandbox. `agentenv shell` starts one.")


def _print_table(found: Sequence[SandboxInfo]) -> None:
    from rich.table import Table

    table = Table("id", "state", "image", "backend", "started", "ends", "owner", "metadata")
    for info in found:
        ends = info.end_at.astimezone().strftime("%H:%M:%S") if info.end_at else ""
        started = info.started_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        metadata = ", ".join(f"{key}={value}" for key, value in info.metadata.items())
        table.add_row(info.id, info.state, info.image, info.backend, started, ends, str(info.owner_pid or ""), metadata)
    console().print(table)


def kill(
    sandboxes: Annotated[list[str] | None, typer.Argument(help="Ids of sandboxes.", autocompletion=complete_sandbox)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every sandbox of this AGENTENV_HOME.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Ends sandboxes and frees what they held."""
    if not sandboxes and not everything:
        raise typer.BadParameter("name at least one sandbox, or give --all")

    async def run() -> list[str]:
        wanted = sandboxes or [info.id for info in await _infos()]
        attached = [await where.sandbox(one) for one in wanted]
        await asyncio.gather(*(one.kill() for one in attached))
        return wanted

    ended = asyncio.run(run())
    if as_json:
        print_json({"killed": ended})
    else:
        typer.echo("\n".join(f"{one} ended" for one in ended) or "No sandbox runs.")


def pause(
    sandbox: SandboxId,
    to_disk: Annotated[
        bool, typer.Option("--to-disk", help="Write it to the disk, so that it takes no memory until it is resumed.")
    ] = False,
) -> None:
    """Freezes every process of a sandbox."""

    async def run() -> None:
        await (await where.sandbox(sandbox)).pause(to_disk=to_disk)

    asyncio.run(run())


def resume(sandbox: SandboxId) -> None:
    """Lets a paused sandbox go on. From the disk it goes on in its own process again, or in a new one where that has ended."""

    async def run() -> None:
        owner = await where.owner()
        record = await asyncio.to_thread(find_record, owner, sandbox) if isinstance(owner, Node) else None
        if record is not None and not record.owner:
            await resume_detached(sandbox)
        else:
            await (await where.sandbox(sandbox)).resume()

    asyncio.run(run())


def fork(
    sandbox: SandboxId,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="How many children.")] = 1,
    memory: wishes.KeepMemory = None,
    as_json: JsonFlag = False,
) -> None:
    """Starts sandboxes that are what this one is now; they belong to the process that owns it. Ends with 1 if one did not start."""

    async def run() -> list[str | AgentEnvError]:
        children = await (await where.sandbox(sandbox)).fork(count, memory=memory)
        return [child if isinstance(child, AgentEnvError) else child.id for child in children]

    children = asyncio.run(run())
    if as_json:
        print_json([{"error": error_data(child)} if isinstance(child, AgentEnvError) else {"id": child} for child in children])
    else:
        for child in children:
            typer.echo(str(child), err=isinstance(child, AgentEnvError))
    if any(isinstance(child, AgentEnvError) for child in children):
        raise typer.Exit(1)
