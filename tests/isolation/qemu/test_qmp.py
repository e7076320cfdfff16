"""The control channel against a QEMU without a machine, which starts at once."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.machines import obtain_or_skip

from agentenv.errors import InfrastructureError
from agentenv.isolation.qemu.ports import listen, port_path
from agentenv.isolation.qemu.qmp import Qmp
from agentenv.isolation.vm.process import Monitor, Warden
from agentenv.isolation.vm.streams import connect


@pytest.fixture
def warden() -> Iterator[Warden]:
    opened = Warden.open()
    yield opened
    opened.close()


@pytest.fixture
async def channel(warden: Warden) -> AsyncIterator[tuple[Qmp, Monitor]]:
    near, far = socket.socketpair()
    words = [str(obtain_or_skip("qemu")), "-machine", "none", "-display", "none", "-nodefaults", "-S"]
    words += ["-chardev", f"socket,id=control,fd={far.fileno()}", "-mon", "chardev=control,mode=control"]
    monitor = warden.spawn(words, descriptors=[far.fileno()])
    far.close()
    qmp = await Qmp.open(near, lambda number, is_open: None)
    yield qmp, monitor
    await qmp.close()
    await monitor.end()


async def test_stop_and_go_on(channel: tuple[Qmp, Monitor]) -> None:
    qmp, monitor = channel
    await qmp.go_on()
    await qmp.stop()
    await qmp.close()
    await qmp.close()
    assert monitor.ended is None


async def test_a_refusal_says_what_was_refused(channel: tuple[Qmp, Monitor]) -> None:
    with pytest.raises(InfrastructureError, match="QEMU refused `query-balloon`"):
        await channel[0].memory_size()


async def test_qemu_listens_for_a_port_that_is_plugged_in(channel: tuple[Qmp, Monitor], tmp_path: Path) -> None:
    (listener,) = listen(tmp_path, [1])
    with listener, pytest.raises(InfrastructureError, match="QEMU refused `device_add`"):  # this machine has no bus for it
        await channel[0].plug_port(1, listener)
    connect(port_path(tmp_path, 1), timeout=10).close()


async def test_a_directory_that_is_not_there(channel: tuple[Qmp, Monitor]) -> None:
    with pytest.raises(InfrastructureError, match="No such file or directory"):
        await channel[0].save_devices(Path("/nowhere/devices"))


async def test_a_qemu_that_is_killed_is_told(channel: tuple[Qmp, Monitor]) -> None:
    qmp, monitor = channel
    await monitor.end()
    with pytest.raises(InfrastructureError, match="QEMU ended instead of answering `cont`"):
        await qmp.go_on()
    near, far = socket.socketpair()
    with near, far, pytest.raises(InfrastructureError, match="QEMU ended"):
        await qmp.plug_port(1, near)


async def test_nobody_at_the_other_end() -> None:
    near, far = socket.socketpair()
    far.close()
    with pytest.raises(InfrastructureError, match="ended before it took a command"):
        await Qmp.open(near, lambda number, is_open: None)
    assert near.fileno() == -1
