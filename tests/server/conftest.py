"""A real server on loopback, in a thread of its own, with real sandboxes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import asyncpg
import httpx
import pytest
from tests.server.postgres import needs_postgres, private_cluster

from agentenv.server.access import Access, Quotas, Role, Tenant
from agentenv.server.database import Database
from agentenv.server.fleet import Fleet
from agentenv.server.fleet.leaving import LeavingPolicy
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
    stop: Callable[..., None]

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
        return RunningServer(there.url, KEY, there.services, self._loop, self.stop)

    def stop(self, policy: LeavingPolicy | None = None) -> None:
        """Ends the server, after its sandboxes were left by that policy; without one, as if it had been told to hurry."""
        if not self._thread.is_alive():
            return
        if policy is not None:
            leaving = self._started.result().services.fleet.leave(policy, 60.0)
            asyncio.run_coroutine_threadsafe(leaving, self._loop).result(120)
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)
        assert not self._thread.is_alive()
        # As asyncio.run does at its end: libraries leave tasks behind that only sleep.
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left))
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


@pytest.fixture(scope="session")
def server_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An AGENTENV_HOME for servers of single tests: making the image `host` anew for each of them would take the longest."""
    return tmp_path_factory.mktemp("servers") / "home"


@pytest.fixture
def start_server(server_home: Path) -> Iterator[StartServer]:
    """Starts servers with settings of the test's own, and ends what is still running at the end. In one home there is one at a time."""
    running: list[ServerThread] = []

    def start(settings: Mapping[str, object] | None = None, *, home: Path = server_home) -> RunningServer:
        thread = ServerThread(load_settings(environment={}, flags={"port": 0, **(settings or {})}), home)
        server = thread.start()
        running.append(thread)
        return server

    yield start
    for thread in reversed(running):
        thread.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests that need no settings of their own; each test ends the sandboxes that it makes."""
    thread = ServerThread(load_settings(environment={}, flags={"port": 0}), tmp_path_factory.mktemp("server") / "home")
    running = thread.start()
    yield running
    thread.stop()


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    """An HTTP client with the first key."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[str]:
    """The URL of a PostgreSQL server, with `{name}` for the database's name."""
    with private_cluster() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_cluster: str) -> str:
    """An empty database."""
    url = postgres_cluster.format(name="postgres")

    async def empty() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        await connection.close()

    asyncio.run(empty())
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=(needs_postgres, pytest.mark.soak))])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """The URL of an empty database of each kind; None is SQLite in the server's directory. Here PostgreSQL is for the long tests."""
    return request.getfixturevalue("postgres_url") if request.param == "postgresql" else None


@pytest.fixture
async def database(database_url: str | None, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database of each kind, open."""
    opened = await Database.open(database_url, tmp_path)
    yield opened
    await opened.close()
