"""`agentenv login` and `logout`: notes which server the other commands talk to, and with what key."""

from __future__ import annotations

from typing import Annotated

import typer

from agentenv.cli.output import JsonFlag, print_json
from agentenv.cli.server_access import ask
from agentenv.config.login import Login, forget_login, save_login


def login(
    server: Annotated[str, typer.Argument(help="The server's URL, such as http://127.0.0.1:8700.")],
    api_key: Annotated[
        str | None, typer.Option("--api-key", help="The API key; without it you are asked.", envvar="AGENTENV_API_KEY")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Checks a key with a server and notes both for the other commands."""
    key = api_key or typer.prompt("API key", hide_input=True)
    noted = Login(server.rstrip("/"), key.strip())
    who = ask(noted, "GET", "/whoami")
    file = save_login(noted)
    if as_json:
        print_json(who | {"server": noted.server, "file": str(file)})
    else:
        typer.echo(f"Logged in at {noted.server} as {who['tenant']} ({who['role']}); noted in {file}.")


def logout() -> None:
    """Forgets the server and its key."""
    typer.echo("Forgotten." if forget_login() else "There was nothing to forget.")
