"""An agent and a connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.guest.local_agent import LocalAgent

from agentenv.guest import Connection


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[LocalAgent]:
    directory = tmp_path / "machine"
    directory.mkdir()
    local = LocalAgent(directory)
    yield local
    local.kill()


@pytest.fixture
async def connection(agent: LocalAgent) -> AsyncIterator[Connection]:
    opened = Connection.open(agent.dial())
    yield opened
    opened.close()
