"""A sandbox behind envd, as the SDKs reach it: over HTTP on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp
from tests.sandbox.conftest import real_node
from uvicorn.server import ServerState

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


@pytest.fixture
async def sandbox(home: Path) -> AsyncIterator[AsyncSandbox]:
    async with real_node(home) as owner, await AsyncSandbox.create(node=owner) as made:
        yield made


@pytest.fixture
def session(sandbox: AsyncSandbox) -> Session:
    return Session(sandbox)


@pytest.fixture
async def http(session: Session) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the envd of `sandbox`, which is not secured."""
    async with serving(Envd(session, None)) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture
async def secured(session: Session) -> AsyncIterator[httpx.AsyncClient]:
    """The same with the access token `secret`, which the client does not send by itself."""
    async with serving(Envd(session, "secret")) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        yield client
