"""`agentenv env`: the environments that can be named in a configuration."""

from __future__ import annotations

from agentenv.cli.lazy import new_app
from agentenv.cli.output import JsonFlag, console, print_json

app = new_app("Lists the environments that a configuration can name.")


@app.callback()
def root() -> None:
    """Lists the environments that a configuration can name."""


@app.command("list")
def list_environments(as_json: JsonFlag = False) -> None:
    """Lists the registered environments; besides them there are gymnasium:ID, module:Class and path.py:Class."""
    from agentenv.envs.registry import default_registry

    names = default_registry().names()
    if as_json:
        print_json([{"name": one.name, "target": one.target} for one in names])
        return
    from rich.table import Table

    table = Table("name", "what it is")
    for one in names:
        table.add_row(one.name, one.target)
    table.add_row("gymnasium:ID", "any environment that gymnasium knows in the sandbox, such as gymnasium:CartPole-v1")
    table.add_row("module:Class", "a class of an importable module")
    table.add_row("path.py:Class", "a class of a file, which is copied into the sandbox")
    console().print(table)
