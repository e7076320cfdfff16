"""One QEMU backend for all tests of a module, and one machine of it: without KVM a boot takes seconds."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.isolation.qemu.machines import Machines
from tests.isolation.vm.emulated import plain
from tests.machines import obtain_or_skip, shared_store, small_root

from agentenv.errors import BackendUnavailable
from agentenv.isolation.artefacts.store import DIRECTORY_VARIABLE
from agentenv.isolation.qemu.backend import QemuBackend
from agentenv.isolation.qemu.machine import QemuMachine


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_root(tmp_path_factory.mktemp("small") / "root")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machines(tmp_path_factory: pytest.TempPathFactory, tree: Path) -> AsyncIterator[Machines]:
    obtain_or_skip("qemu")
    obtain_or_skip("kernel")
    owner = tmp_path_factory.mktemp("qemu") / f"o{secrets.token_hex(5)}"
    owner.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DIRECTORY_VARIABLE, str(shared_store().directory))
        try:
            backend = await QemuBackend.open(owner)
        except BackendUnavailable as error:
            pytest.skip(f"no QEMU backend: {error}")
        yield Machines(owner, backend, plain(tree))
        await backend.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine(machines: Machines) -> QemuMachine:
    return await machines.start()
