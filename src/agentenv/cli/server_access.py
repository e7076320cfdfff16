"""What the commands about a server have in common: which one, with what key, and its answers as data or errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer

import agentenv.errors as errors
from agentenv.config.login import Login, saved_login
from agentenv.errors import AgentEnvError, CapabilityError, ConfigError, InfrastructureError
from agentenv.paths import KEY_VARIABLE, SERVER_VARIABLE

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
    if url is None:
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
    try:
        told = answer.json()
        message, kind, remedy = str(told["message"]), told.get("type"), told.get("remedy")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InfrastructureError(f"{login.server} answered {answer.status_code} and no reason: is it an AgentENV server?") from None
    raise _error(kind, message, remedy)


def _error(kind: str | None, message: str, remedy: str | None) -> AgentEnvError:
    """The error that the server raised, or its nearest base that needs no more than a message."""
    found = getattr(errors, kind or "", AgentEnvError)
    while "__init__" in vars(found) and found is not AgentEnvError:
        found = found.__base__
    error: AgentEnvError = found(message, remedy=remedy)
    return error
