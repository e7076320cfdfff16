"""A sandbox with a server in it, behind the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from starlette.responses import PlainTextResponse
from tests.sandbox.conftest import real_node
from tests.server.envd.conftest import serving

from agentenv.errors import NotFound, SandboxPaused
from agentenv.isolation.contract import Resources
from agentenv.sandbox import AsyncSandbox
from agentenv.server.fleet import Lifecycle, NetworkRules, SandboxView, State
from agentenv.server.proxy import SandboxProxy

DOMAIN = "boxes.test:8700"
SANDBOX_ID = "11111111-2222-3333-4444-555555555555"
INSIDE = Path(__file__).with_name("inside.py")
PORT, WEBSOCKET_PORT, TLS_PORT = 8000, 8001, 8443


class OneSandbox:
    """A fleet of one, in which a test decides what traffic may do."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self.sandbox = sandbox
        self.wakes = True
        self.used = 0
        self.unused = asyncio.Event()
        self.view = SandboxView(
            id=SANDBOX_ID,
            tenant="tenant",
            state=State.RUNNING,
            template="base",
            build="build",
            alias=None,
            envd_access_token="envd-token",
            traffic_access_token="traffic-token",
            domain=DOMAIN,
            started=0.0,
            end=None,
            timeout=300.0,
            lifecycle=Lifecycle(),
            network=NetworkRules(https_ports=(TLS_PORT,)),
            resources=Resources(),
            metadata={},
            env={"FROM_VIEW": "yes"},
            user="user",
            cwd=None,
            parent=None,
            pause_mode=None,
            machine=sandbox.id,
        )

    def change(self, **facts: object) -> None:
        self.view = replace(self.view, **facts)  # type: ignore[arg-type]

    def record(self, sandbox_id: str) -> SandboxView:
        if sandbox_id != SANDBOX_ID:
            raise NotFound(f"there is no sandbox {sandbox_id}.")
        return self.view

    def whose_token(self, fits: Callable[[str], bool]) -> SandboxView | None:
        return self.view if fits(self.view.envd_access_token) else None

    @contextmanager
    def in_use(self, sandbox_id: str) -> Iterator[None]:
        self.used += 1
        self.unused.clear()
        try:
            yield
        finally:
            self.used -= 1
            if not self.used:
                self.unused.set()

    async def left_alone(self) -> None:
        """Returns when nobody uses the sandbox any more."""
        await self.unused.wait()

    async def running(self, sandbox_id: str) -> AsyncSandbox:
        if self.view.state is not State.RUNNING:
            if not self.wakes:
                raise SandboxPaused("it is paused.")
            await self.sandbox.resume()
            self.change(state=State.RUNNING)
        return self.sandbox


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One AGENTENV_HOME for all tests, because the first sandbox in a home makes the layers of the image."""
    return tmp_path_factory.mktemp("home")


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[AsyncSandbox]:
    """A sandbox once the server in it listens."""
    async with real_node(home) as owner, await AsyncSandbox.create(node=owner) as made:
        await made.files.write("/srv/inside.py", INSIDE.read_bytes())
        handle = await made.commands.run(["python3", "/srv/inside.py", str(PORT), str(WEBSOCKET_PORT)], background=True)
        async for piece in handle:
            assert piece.stdout == "ready\n", piece
            break
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(home: Path) -> AsyncIterator[AsyncSandbox]:
    """The sandbox of all tests of a module."""
    async with opened(home) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(sandbox: AsyncSandbox) -> OneSandbox:
    return OneSandbox(sandbox)


@pytest_asyncio.fixture(loop_scope="module")
async def url(fleet: OneSandbox) -> AsyncIterator[str]:
    """The server under test: the proxy before an application that says `the server itself`."""
    async with serving(SandboxProxy(PlainTextResponse("the server itself"), fleet, DOMAIN)) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        yield client


def to(port: int, **more: str) -> dict[str, str]:
    """The headers that lead to a port of the sandbox."""
    return {"e2b-sandbox-id": SANDBOX_ID, "e2b-sandbox-port": str(port), **{name.replace("_", "-"): value for name, value in more.items()}}
