"""`agentenv completion`: the script that teaches a shell to complete `agentenv`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script


class Shell(StrEnum):
    """The shells that there is a script for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Whose script to print.")]) -> None:
    """Prints the completion script of a shell.

    To use it at once: `source <(agentenv completion bash)`. To install it for good: `agentenv --install-completion`.
    """
    typer.echo(get_completion_script(prog_name="agentenv", complete_var="_AGENTENV_COMPLETE", shell=shell.value))
