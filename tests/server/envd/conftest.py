"""A sandbox behind envd, as the SDKs reach it: over HTTP on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import uvicorn
from starlette.types import ASGIApp
from tests.sandbox.conftest import real_node
from uvicorn.server import ServerState

from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox
from agentenv.server.envd.app import Envd
from agentenv.server.envd.session import Session


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """The application under a URL, by uvicorn's protocols in the loop of the test; uvicorn's own server ends with a pause of its own."""
    config = uvicorn.Config(app, log_level="warning")
    config.load()
    state = ServerState()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = await asyncio.get_running_loop().create_server(
            lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
            sock=listener,
        )
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.close()
            for connection in list(state.connections):
                connection.transport.abort()
            if state.tasks:
                await asyncio.wait(state.tasks)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One AGENTENV_HOME for all tests, because the first sandbox in a home makes the layers of the image."""
    return tmp_path_factory.mktemp("home")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(home: Path) -> AsyncIterator[Node]:
    async with real_node(home) as owner:
        yield owner


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(node: Node) -> AsyncIterator[AsyncSandbox]:
    """The sandbox of all tests of a module that leave it usable."""
    async with await AsyncSandbox.create(node=node) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(request: pytest.FixtureRequest, node: Node, shared: AsyncSandbox) -> AsyncIterator[AsyncSandbox]:
    """The shared one with a home directory as it was, or one of its own for a test that is marked `own_sandbox`."""
    if request.node.get_closest_marker("own_sandbox"):
        # One of them has its memory run out, which ends other backends' sandboxes as a whole.
        async with await AsyncSandbox.create(node=node, isolation="namespace") as made:
            yield made
        return
    yield shared
    await shared.commands.run("kill -9 -1; rm -rf /home/user/* /tmp/*", user="user")


@pytest_asyncio.fixture(loop_scope="module")
async def session(sandbox: AsyncSandbox) -> Session:
    return Session(sandbox)


@pytest_asyncio.fixture(loop_scope="module")
async def http(session: Session) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the envd of `sandbox`, which is not secured."""
    async with serving(Envd(session, None)) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def secured(session: Session) -> AsyncIterator[httpx.AsyncClient]:
    """The same with the access token `secret`, which the client does not send by itself."""
    async with serving(Envd(session, "secret")) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        yield client
