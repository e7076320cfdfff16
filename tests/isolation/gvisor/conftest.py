"""A gVisor backend for each test that starts sandboxes; skipped with the reason where gVisor cannot run."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.isolation.gvisor.sandboxes import GvisorYard
from tests.isolation.sandboxes import skeleton
from tests.machines import runsc_or_skip

from agentenv.errors import BackendUnavailable
from agentenv.isolation.gvisor.backend import GvisorBackend
from agentenv.isolation.gvisor.machine import GvisorMachine


@pytest.fixture
async def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GvisorYard]:
    runsc_or_skip(monkeypatch)
    directory = tmp_path / f"o{uuid.uuid4().hex[:8]}"
    directory.mkdir(mode=0o700)
    try:
        backend = await GvisorBackend.open(directory)
    except BackendUnavailable as error:
        pytest.skip(f"no gVisor here: {error.message}")
    probe = await asyncio.to_thread(backend.probe)
    if not probe.usable:
        await backend.close()
        pytest.skip(f"gVisor does not work here: {probe.reason}")
    yield GvisorYard(backend, directory, skeleton(tmp_path))
    await backend.close()


@pytest.fixture
async def machine(yard: GvisorYard) -> GvisorMachine:
    return await yard.backend.start(yard.spec())
