"""`agentenv login` and `logout`: notes which server the other commands talk to, and with what key."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from agentenv.cli import wishes
from agentenv.cli.output import JsonFlag, print_json
from agentenv.cli.server_access import ask
from agentenv.config.login import Login, forget_login, save_login
from agentenv.errors import InfrastructureError


def login(
    server: Annotated[str, typer.Argument(help="The server's URL, such as http://127.0.0.1:8700.")],
    api_key: Annotated[
        str | None, typer.Option("--api-key", help="The API key; without it you are asked.", envvar="AGENTENV_API_KEY")
    ] = None,
    wait: Annotated[str, typer.Option(help="How long to wait for a server that does not answer yet: 30s, 2m.")] = "0s",
    as_json: JsonFlag = False,
) -> None:
    """Checks a key with a server and notes both for the other commands."""
    key = api_key or typer.prompt("API key", hide_input=True)
    noted = Login(server.rstrip("/"), key.strip())
    who = _greeted(noted, wishes.seconds(wait, "--wait") or 0.0)
    file = save_login(noted)
    if as_json:
        print_json(who | {"server": noted.server, "file": str(file)})
    else:
        typer.echo(f"Logged in at {noted.server} as {who['tenant']} ({who['role']}); noted in {file}.")


def _greeted(login: Login, patience: float) -> dict[str, Any]:
    """Who the server says that we are. A server that cannot be reached is asked again, ever more seldom, for `patience` seconds."""
    until, pause = time.monotonic() + patience, 0.05
    while True:
        try:
            said: dict[str, Any] = ask(login, "GET", "/whoami")
            return said
        except InfrastructureError:
            if time.monotonic() + pause > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def logout() -> None:
    """Forgets the server and its key."""
    typer.echo("Forgotten." if forget_login() else "There was nothing to forget.")
