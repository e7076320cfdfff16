"""A backend with its launcher for each test that starts sandboxes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.isolation.sandboxes import Yard, skeleton

from agentenv.errors import BackendUnavailable
from agentenv.isolation.namespace.backend import NamespaceBackend
from agentenv.isolation.namespace.machine import NamespaceMachine


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    directory = tmp_path / f"o{uuid.uuid4().hex[:12]}"
    directory.mkdir(mode=0o700)
    try:
        backend = await NamespaceBackend.open(directory)
    except BackendUnavailable as error:
        pytest.skip(f"no namespaces here: {error.message}")
    yield Yard(backend, directory, skeleton(tmp_path))
    await backend.close()


@pytest.fixture
async def machine(yard: Yard) -> NamespaceMachine:
    return await yard.backend.start(yard.spec())
