"""The options by which every command that makes a sandbox says what it should be."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agentenv.errors import ConfigError
from agentenv.units import parse_duration

Image = Annotated[
    str | None,
    typer.Option(
        help="What it sees as its files: host, debian, dir:PATH, tar:PATH, REGISTRY/NAME:TAG, template:NAME, …; "
        "by default debian for virtual machines, else host."
    ),
]
FromSnapshot = Annotated[str | None, typer.Option("--snapshot", help="Start from this snapshot instead of an image.")]
FilesOnly = Annotated[bool, typer.Option("--files-only", help="Of the snapshot take the files, not the processes.")]
KeepMemory = Annotated[
    bool | None,
    typer.Option("--memory/--files", help="With its processes, or its files only; by default with them where that is possible."),
]
Isolation = Annotated[str, typer.Option(help="The backend, or auto for the strongest usable.")]
Cpu = Annotated[float | None, typer.Option(min=0.01, help="Cores.")]
Memory = Annotated[str | None, typer.Option(help="A size such as 512MiB or 4GB.")]
Storage = Annotated[str | None, typer.Option(help="A size such as 512MiB or 4GB.")]
Pids = Annotated[int | None, typer.Option(min=1, help="Processes and threads.")]
Net = Annotated[bool, typer.Option("--network", help="Let it reach the world (this machine and private ranges only where allowed).")]
Port = Annotated[list[int] | None, typer.Option("--port", min=1, max=65535, help="Publish this port on loopback; may be given again.")]
Allow = Annotated[list[str] | None, typer.Option(help="An address, range or domain that it may reach; may be given again.")]
Deny = Annotated[list[str] | None, typer.Option(help="One that it may not reach; may be given again.")]
Internet = Annotated[bool, typer.Option("--internet/--no-internet", help="Whether it reaches what no rule names.")]
Env = Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE for every process; may be given again.")]


def resources(cpu: float | None, memory: str | None, storage: str | None, pids: int | None) -> dict[str, Any]:
    """The limits that were given, as `Sandbox.create` takes them."""
    given = {"cpu": cpu, "memory": memory, "storage": storage, "pids": pids}
    return {name: value for name, value in given.items() if value is not None}


def network(enabled: bool, ports: list[int] | None, **wanted: Any) -> dict[str, Any]:
    """The network that was asked for, as `Sandbox.create` takes it; `wanted` comes from `rules`."""
    return {"enabled": enabled, "ports": ports or [], **wanted}


def rules(allow: list[str] | None, deny: list[str] | None, internet: bool) -> dict[str, Any]:
    """The rules that were given, as `Sandbox.set_network` takes them."""
    return {"allow_internet_access": internet, "allow": allow or [], "deny": deny or []}


def environment(pairs: list[str] | None, *, option: str = "--env") -> dict[str, str]:
    """NAME=VALUE pairs as a mapping. Raises `ConfigError`."""
    found: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"{pair!r} is no NAME=VALUE", key=option)
        found[name] = value
    return found


def seconds(duration: str | None, option: str) -> float | None:
    """A duration option in seconds. Raises `ConfigError`."""
    if duration is None:
        return None
    try:
        return parse_duration(duration)
    except ValueError as error:
        raise ConfigError(str(error), key=option) from error
