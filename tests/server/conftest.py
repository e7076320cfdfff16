"""A real server on loopback, in a thread of its own, with real sandboxes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from agentenv.server.access import Access, Quotas, Role, Tenant
from agentenv.server.fleet import Fleet
from agentenv.server.serve import Listening, listening
from agentenv.server.services import Services
from agentenv.server.settings import ServerSettings, load_settings

KEY = "e2b_" + "0123456789" * 4
Result = TypeVar("Result")


@dataclass(frozen=True)
class RunningServer:
    """A server that takes requests at `url`; `key` is the first one."""

    url: str
    key: str
    services: Services
    loop: asyncio.AbstractEventLoop

    @property
    def fleet(self) -> Fleet:
        return self.services.fleet

    @property
    def access(self) -> Access:
        return self.services.access

    @property
    def tenant(self) -> Tenant:
        return self.access.tenant("default")

    def wait(self, work: Awaitable[Result]) -> Result:
        """Runs something in the server's event loop."""

        async def run() -> Result:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(60)

    def client(self, key: str | None = None) -> httpx.Client:
        """An HTTP client with a key, by default the first one."""
        return httpx.Client(base_url=self.url, headers={"X-API-Key": key or self.key}, timeout=60)

    def new_tenant(self, name: str, *roles: Role, quotas: Quotas | None = None) -> tuple[Tenant, list[str]]:
        """A tenant with a key for each role."""
        tenant = self.wait(self.access.create_tenant(name, quotas or Quotas()))
        return tenant, [self.wait(self.access.create_key(tenant, str(role), role))[1] for role in roles]


class ServerThread:
    """Runs one server in a thread with an event loop of its own."""

    def __init__(self, settings: ServerSettings, home: Path) -> None:
        self._settings = settings
        self._home = home
        self._loop = asyncio.new_event_loop()
        self._started: asyncio.Future[Listening] = self._loop.create_future()
        self._end = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), name="server")

    def start(self) -> RunningServer:
        self._thread.start()
        assert self._ready.wait(60)
        there = self._started.result()
        return RunningServer(there.url, KEY, there.services, self._loop)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._loop.close()

    async def _run(self) -> None:
        try:
            async with listening(self._settings, self._home, given_key=KEY) as there:
                self._started.set_result(there)
                self._ready.set()
                await self._end.wait()
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
                self._ready.set()
                return
            raise


StartServer = Callable[..., RunningServer]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers with settings of the test's own, one after the other in one home, and ends what is still running at the end."""
    running: list[ServerThread] = []

    def start(settings: Mapping[str, object] | None = None, *, home: Path | None = None) -> RunningServer:
        thread = ServerThread(load_settings(environment={}, flags={"port": 0, **(settings or {})}), home or tmp_path / "home")
        server = thread.start()
        running.append(thread)
        return server

    yield start
    for thread in reversed(running):
        thread.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for the tests of a module."""
    thread = ServerThread(load_settings(environment={}, flags={"port": 0}), tmp_path_factory.mktemp("server") / "home")
    running = thread.start()
    yield running
    thread.stop()


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    """An HTTP client with the first key."""
    with server.client() as client:
        yield client
