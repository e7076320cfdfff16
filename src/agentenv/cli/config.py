"""`agentenv config`: checks configuration files, shows what they mean in full, and prints the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentenv.cli.lazy import new_app
from agentenv.cli.output import JsonFlag, print_json

app = new_app("Checks and explains configuration files.")

ConfigFile = Annotated[Path, typer.Argument(help="A YAML file; docs/configuration.md describes it.", show_default=False)]


@app.command()
def check(file: ConfigFile, as_json: JsonFlag = False) -> None:
    """Checks a file: every mistake with its line, its key and what would be right. Exit code 1 where there is one."""
    from agentenv.cli.names import lookups
    from agentenv.config import load

    config = load(file, lookups=lookups())
    if as_json:
        print_json({"ok": True, "file": str(file), "digest": config.digest()})
    else:
        typer.echo(f"{file}: OK")


@app.command()
def show(file: ConfigFile, as_json: JsonFlag = False) -> None:
    """Shows a file's full meaning: defaults filled in, sizes in bytes, durations in seconds."""
    import yaml

    from agentenv.config import load

    data = load(file).to_dict()
    if as_json:
        print_json(data)
    else:
        typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def schema() -> None:
    """Prints the JSON schema of configuration files: every key with its meaning, unit, default and limits."""
    from agentenv.config import json_schema

    print_json(json_schema())
