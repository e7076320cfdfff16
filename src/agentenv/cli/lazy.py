"""A typer group whose commands are loaded when they are used, and which turns AgentENV's errors into one clear line."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from agentenv.cli.output import print_error
from agentenv.cli.table import COMMANDS
from agentenv.errors import AgentEnvError


class LazyGroup(TyperGroup):
    """Shows the table's lines in its help and loads a command's module when that command is called or completed."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=entry.help, rich_help_panel=entry.panel, add_help_option=False)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The real command behind the first of `args`."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = load_command(name)
        return name, command, rest

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As usual; and remembers whether errors are to be written as JSON, since they may come before the command has seen its options."""
        own = args[: args.index("--")] if "--" in args else args
        ctx.meta["agentenv.json"] = "--json" in own
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command. Exit codes: 1 for an error of AgentENV, 130 for Ctrl-C; usage errors (2) are typer's."""
        try:
            return super().invoke(ctx)
        except AgentEnvError as error:
            print_error(error, as_json=ctx.meta["agentenv.json"])
            raise SystemExit(1) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None


def load_command(name: str) -> Any:
    """The command called `name` in the table, as typer runs it."""
    entry = COMMANDS[name]
    module, _, attribute = entry.place.partition(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        app = new_app(no_args_is_help=False)
        app.command(name)(found)
        found = app
    command = typer.main.get_command(found)
    command.name = name
    return command


def new_app(help: str | None = None, *, no_args_is_help: bool = True) -> typer.Typer:
    """An app for the commands below one of the table's, set up like the main one."""
    return typer.Typer(help=help, add_completion=False, no_args_is_help=no_args_is_help, pretty_exceptions_enable=False)
