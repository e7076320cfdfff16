"""One booted guest for all tests of a module, since a boot takes seconds without KVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.isolation.vm.emulated import EmulatedGuest, guest_files
from tests.machines import small_root
from tests.native.client import Client

from agentenv.isolation.vm import GuestFiles


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_root(tmp_path_factory.mktemp("small") / "root")


@pytest.fixture(scope="session")
def files(tree: Path) -> GuestFiles:
    return guest_files(tree)


@pytest.fixture(scope="module")
def guest(files: GuestFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedGuest]:
    started = EmulatedGuest(tmp_path_factory.mktemp("guest"), files)
    try:
        started.await_ports()
        yield started
    finally:
        started.end()


@pytest.fixture
def client(guest: EmulatedGuest) -> Iterator[Client]:
    connection = guest.dial()
    yield connection
    connection.close()
