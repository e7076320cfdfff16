"""A launcher of the real Firecracker for each test that makes machines; skipped with the reason where that cannot be."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.isolation.firecracker.machines import PAGES, VmYard, find_programs

from agentenv.isolation.firecracker.counter import write_kernel
from agentenv.isolation.firecracker.launcher import Launcher
from agentenv.isolation.namespace.cgroups import CgroupTree


@pytest.fixture
async def vms(tmp_path: Path) -> AsyncIterator[VmYard]:
    """Jailed, as the backend does it for root."""
    async for yard in open_yard(tmp_path, jailed=True):
        yield yard


@pytest.fixture
async def free_vms(tmp_path: Path) -> AsyncIterator[VmYard]:
    """Without the jailer."""
    async for yard in open_yard(tmp_path, jailed=False):
        yield yard


async def open_yard(place: Path, *, jailed: bool) -> AsyncIterator[VmYard]:
    directory = place / f"o{uuid.uuid4().hex[:8]}"
    directory.mkdir(mode=0o700)
    launcher = await Launcher.open(find_programs(jailed=jailed), CgroupTree.discover(), directory)
    yard = VmYard(launcher, directory, write_kernel(directory / "kernel", pages=PAGES))
    try:
        yield yard
    finally:
        await yard.close()
