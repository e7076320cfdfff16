"""`agentenv`: puts the commands of the table together."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from agentenv.cli.lazy import LazyGroup
from agentenv.paths import HERE, SERVER_VARIABLE
from agentenv.version import __version__

app = typer.Typer(
    cls=LazyGroup,
    name="agentenv",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agentenv {__version__}")
        raise typer.Exit


@app.callback()
def root(
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Log more to stderr; twice for everything.")] = 0,
    server: Annotated[
        str | None, typer.Option(help="Sandboxes are on this server [AGENTENV_SERVER, else that of `agentenv login`, else this machine].")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Sandboxes are on this machine, whatever else is set.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON lines.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """Isolated environments for reinforcement-learning agents that start in milliseconds and fork like processes."""
    from agentenv.monitoring.logs import configure_logging

    # Where sandboxes are is a matter of the whole process, and of what it starts.
    if local or server is not None:
        os.environ[SERVER_VARIABLE] = HERE if local else server or ""

    configure_logging(level=("warning", "info", "debug")[min(verbose, 2)], json_lines=log_json)


def main() -> None:
    """Entry point of the program."""
    app(prog_name="agentenv")


if __name__ == "__main__":
    main()
