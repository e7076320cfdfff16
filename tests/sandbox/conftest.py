"""Sandboxes for the tests: one without walls that any machine has, and real ones where a backend works."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.sandbox.local_host import LocalHost

from agentenv.isolation import probe_all
from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox


@asynccontextmanager
async def real_node(home: Path) -> AsyncIterator[Node]:
    """A node with real backends; skips where no backend works."""
    probes = probe_all()
    if not any(probe.usable for probe in probes):
        pytest.skip("no backend works here: " + "; ".join(f"{probe.backend}: {probe.reason}" for probe in probes))
    async with await Node.open(home) as opened:
        yield opened


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One AGENTENV_HOME for all tests, because the first sandbox in a home makes the layers of the image."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
async def node(home: Path) -> AsyncIterator[Node]:
    """A node with real backends."""
    async with real_node(home) as opened:
        yield opened


@pytest.fixture
def host(tmp_path: Path) -> Iterator[LocalHost]:
    directory = tmp_path / "local"
    directory.mkdir()
    local = LocalHost(directory)
    yield local
    local.machine.kill()


@pytest.fixture
async def local(host: LocalHost, request: pytest.FixtureRequest) -> AsyncIterator[AsyncSandbox]:
    """A handle on an agent without walls, in whose host a test can play faults."""
    sandbox = AsyncSandbox(host, None)  # type: ignore[arg-type]
    yield sandbox
    await sandbox.kill()


@pytest.fixture(params=["local", "real"])
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path, home: Path) -> AsyncIterator[AsyncSandbox]:
    """The same handle around an agent without walls and around a real sandbox."""
    if request.param == "local":
        directory = tmp_path / "local"
        directory.mkdir()
        async with AsyncSandbox(LocalHost(directory), None) as made:  # type: ignore[arg-type]
            yield made
    else:
        async with real_node(home) as owner, await AsyncSandbox.create(node=owner) as made:
            yield made
