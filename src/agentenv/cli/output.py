"""What all commands print alike: results on stdout, errors on stderr in one line, both as JSON where `--json` asks for it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from agentenv.errors import AgentEnvError

if TYPE_CHECKING:
    from rich.console import Console

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, also for errors.")]
"""The `--json` of every command."""


def print_json(data: object) -> None:
    """Writes `data` to stdout: indented for people, on one line for pipes."""
    indent = 2 if sys.stdout.isatty() else None
    typer.echo(json.dumps(data, indent=indent, ensure_ascii=False, default=str))


def print_error(error: AgentEnvError, *, as_json: bool = False) -> None:
    """Writes an error for people to stderr, or as `{"error": {type, message, …}}` to stdout."""
    if as_json:
        print_json({"error": error_data(error)})
    else:
        label = typer.style("Error:", fg=typer.colors.RED, bold=True)
        lines = str(error).splitlines() or [type(error).__name__]
        typer.echo("\n".join([f"{label} {lines[0]}", *lines[1:]]), err=True)


def error_data(error: AgentEnvError) -> dict[str, object]:
    """An error as plain data: its type, message and remedy, and for a configuration every problem with its place."""
    data: dict[str, object] = {"type": type(error).__name__, "message": error.message, "remedy": error.remedy}
    problems = getattr(error, "problems", ())
    if problems:
        data["problems"] = [problem.to_dict() for problem in problems]
    return data


def console() -> Console:
    """A rich console on stdout; a pipe or file gets lines long enough for a table."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 140)
