"""Where the commands on sandboxes and templates act: on this machine, or on a server."""

from __future__ import annotations

import os

from agentenv.cli.server_access import chosen_server
from agentenv.config.login import Login, saved_login
from agentenv.paths import HERE, SERVER_VARIABLE
from agentenv.sandbox import AsyncSandbox, default_node
from agentenv.sandbox.owners import Owner, host_of


def server() -> Login | None:
    """The server that commands act on: what `--server` says, else AGENTENV_SERVER, else that of `agentenv login`; None for this machine.

    Raises `ConfigError` for a server without a key.
    """
    named = os.environ.get(SERVER_VARIABLE)
    if named == HERE or (not named and saved_login() is None):
        return None
    return chosen_server(named, None)


async def owner() -> Owner:
    """The node to ask: the server's, or this machine's."""
    there = server()
    return await (default_node(HERE) if there is None else default_node(there.server, there.api_key))


async def sandbox(identifier: str) -> AsyncSandbox:
    """A handle on a sandbox that there is. Raises `NotFound`."""
    asked = await owner()
    return AsyncSandbox(await host_of(asked, identifier), asked)
