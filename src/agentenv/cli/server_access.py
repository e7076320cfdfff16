"""What the commands about a server have in common: which one, with what key, and its answers as data or errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentenv.config.login import Login, saved_login
from agentenv.errors import AgentEnvError, CapabilityError, ConfigError, InfrastructureError
from agentenv.paths import HERE, KEY_VARIABLE, SERVER_VARIABLE

if TYPE_CHECKING:
    import httpx

PATIENCE = 120.0
"""Seconds that an answer may take."""

Server = Annotated[str | None, typer.Option("--server", help=f"The server's URL [{SERVER_VARIABLE}, else that of `agentenv login`].")]
ApiKey = Annotated[str | None, typer.Option("--api-key", help=f"The API key [{KEY_VARIABLE}, else that of `agentenv login`].")]


def chosen_server(server: str | None, api_key: str | None) -> Login:
    """Which server is meant and with what key: what was given, else the environment's, else what `agentenv login` noted.

    Raises `ConfigError` where nothing says.
    """
    saved = saved_login()
    url = server or os.environ.get(SERVER_VARIABLE) or (saved.server if saved else None)
    if url is None or url == HERE:
        raise ConfigError("no server is named", remedy=f"Give --server URL, set {SERVER_VARIABLE}, or run `agentenv login URL` once.")
    # A key is for the server that it was noted with, and for no other.
    key = api_key or os.environ.get(KEY_VARIABLE) or (saved.api_key if saved and saved.server == url.rstrip("/") else None)
    if key is None:
        raise ConfigError(
            f"there is no API key for {url}", remedy=f"Give --api-key KEY, set {KEY_VARIABLE}, or run `agentenv login {url}`."
        )
    return Login(url.rstrip("/"), key)


def ask(login: Login, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """The server's answer as plain data, None where it has no content. Raises the error that the server answered with."""
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise CapabilityError(f"talking to a server needs the package {error.name!r}.", remedy="Run `pip install httpx`.") from error
    try:
        answer = httpx.request(method, login.server + path, json=body, headers={"X-API-Key": login.api_key}, timeout=PATIENCE)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InfrastructureError(f"{login.server} does not answer: {error}.", remedy="Check the URL and that the server runs.") from error
    if answer.is_success:
        return answer.json() if answer.content else None
    raise _fault(login, answer)


def _fault(login: Login, answer: httpx.Response) -> AgentEnvError:
    """The error that the server raised."""
    from agentenv.node.control import Fault, restored

    try:
        told = answer.json()
        return restored(Fault(str(told["type"]), str(told["message"]), told.get("remedy"), told.get("fields") or {}))
    except (ValueError, KeyError, TypeError, AttributeError):
        return InfrastructureError(f"{login.server} answered {answer.status_code} and no reason: is it an AgentENV server?")
