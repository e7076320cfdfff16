"""Where the commands on sandboxes act: on this machine, or on a server."""

from __future__ import annotations

import os

from agentenv.config.login import saved_login
from agentenv.paths import HERE, KEY_VARIABLE, SERVER_VARIABLE
from agentenv.sandbox import AsyncSandbox, default_node
from agentenv.sandbox.owners import Owner, host_of


async def owner() -> Owner:
    """The node to ask: what `--local` or `--server` say, else AGENTENV_SERVER, else the server of `agentenv login`, else this machine's."""
    server, noted = os.environ.get(SERVER_VARIABLE), saved_login()
    if server == HERE or (server is None and noted is None):
        return await default_node(HERE)
    url = str(server or (noted.server if noted else "")).rstrip("/")
    # A key is for the server that it was noted with, and for no other.
    key = os.environ.get(KEY_VARIABLE) or (noted.api_key if noted and noted.server == url else None)
    return await default_node(url, key)


async def sandbox(identifier: str) -> AsyncSandbox:
    """A handle on a sandbox that there is. Raises `NotFound`."""
    asked = await owner()
    return AsyncSandbox(await host_of(asked, identifier), asked)
