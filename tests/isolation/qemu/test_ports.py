"""The pool of connections, with listening sockets and no machine."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from agentenv.errors import InfrastructureError, InvalidState
from agentenv.isolation.qemu.command import MOST_PORTS
from agentenv.isolation.qemu.ports import Ports, listen, port_path


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[list[socket.socket]]:
    listeners = listen(tmp_path, range(1, MOST_PORTS + 1))
    yield listeners
    for listener in listeners:
        listener.close()


def taken_of(ports: Ports, listeners: list[socket.socket]) -> int:
    """Takes a connection and says over which port it goes."""
    with ports.take() as connection:
        connection.sendall(b"?")
        return accepted(listeners)


def accepted(listeners: list[socket.socket]) -> int:
    """The number of the port that somebody has connected to."""
    for number, listener in enumerate(listeners, 1):
        listener.setblocking(False)
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            continue
        return number
    raise AssertionError("no port was connected to")


async def test_the_last_free_port_is_kept_and_others_plugged_in(tmp_path: Path) -> None:
    plugged: list[int] = []

    async def plug(number: int, listener: socket.socket) -> None:
        plugged.append(number)
        listeners.append(listener.dup())
        if number == 4:
            raise InfrastructureError("QEMU ended.")

    async def taken() -> int:
        """Takes a connection and says over which port it goes."""
        with ports.take() as connection:
            connection.sendall(b"?")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return accepted(listeners)

    listeners = listen(tmp_path, [1, 2])
    ports = Ports(tmp_path, 2, (1, 2))
    ports.serve(plug)
    first = await taken()
    assert first in (1, 2)
    assert plugged == [3], "ahead of whoever comes next"
    assert await taken() == 4, "the guest has not opened the other yet"
    assert plugged == [3, 4]
    assert ports.free == ((2,) if first == 1 else (1,))
    ports.changed(first, False)
    ports.changed(first, True)
    ports.changed(3, True)
    assert len(ports.free) == 3
    assert await taken() in (1, 2, 3)
    assert plugged == [3, 4], "two are left"
    ports.close()
    assert not any(port_path(tmp_path, number).exists() for number in range(1, 5))
    for listener in listeners:
        listener.close()


async def test_a_port_is_taken_though_there_is_no_socket_for_another(
    tmp_path: Path, sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def plug(number: int, listener: socket.socket) -> None:
        raise AssertionError(f"port {number} was plugged in with {listener}")

    def none_left(directory: Path, numbers: Iterable[int]) -> list[socket.socket]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    ports = Ports(tmp_path, 2, (1, 2))
    ports.serve(plug)
    monkeypatch.setattr("agentenv.isolation.qemu.ports.listen", none_left)
    assert taken_of(ports, sockets) in (1, 2)
    with pytest.raises(OSError, match="Too many open files"):
        ports.take()


async def test_all_in_use_is_said_at_once_in_the_loop_and_waited_for_elsewhere(tmp_path: Path, sockets: list[socket.socket]) -> None:
    ports = Ports(tmp_path, MOST_PORTS, (5,))
    assert taken_of(ports, sockets) == 5  # there is none that could be plugged in instead
    with pytest.raises(InvalidState, match="all 30 connections"):
        ports.take()
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(taken_of(ports, sockets)))
    thread.start()
    ports.changed(9, False)
    ports.changed(9, True)
    await asyncio.to_thread(thread.join)
    assert found == [9]


async def test_whoever_waits_is_told_when_the_machine_ends(tmp_path: Path, sockets: list[socket.socket]) -> None:
    ports = Ports(tmp_path, MOST_PORTS, ())
    waiting = asyncio.create_task(asyncio.to_thread(ports.take))
    await asyncio.sleep(0)
    ports.close()
    with pytest.raises((InvalidState, OSError)):
        await waiting
    assert not [number for number in range(1, MOST_PORTS + 1) if port_path(tmp_path, number).exists()]


async def test_that_a_port_is_open_does_not_make_it_free(tmp_path: Path, sockets: list[socket.socket]) -> None:
    ports = Ports(tmp_path, 3, (1,))
    for number in (1, 2, 3):
        ports.changed(number, True)
    assert ports.free == (1,)
    ports.changed(3, False)
    ports.changed(3, True)
    assert ports.free == (1, 3)


async def test_a_port_that_is_open_once_more_was_left_too_quickly_to_be_told(tmp_path: Path, sockets: list[socket.socket]) -> None:
    ports = Ports(tmp_path, 3, (1,))
    assert taken_of(ports, sockets) == 1
    for number in (1, 2, 3):
        ports.changed(number, True)
    assert ports.free == (), "the copy begins so"
    ports.changed(1, True)
    ports.changed(2, True)
    assert ports.free == (1, 2)
    ports.changed(1, True)
    assert ports.free == (1, 2)


async def test_the_first_connection_to_a_fresh_machine_waits_for_its_guest(tmp_path: Path, sockets: list[socket.socket]) -> None:
    ports = Ports(tmp_path, 1, ())
    waiting = asyncio.ensure_future(ports.first())
    await asyncio.sleep(0)
    assert not waiting.done()
    ports.changed(1, True)
    with await waiting:
        assert accepted(sockets) == 1


async def test_the_first_connection_to_a_copy_is_there_before_its_guest(tmp_path: Path, sockets: list[socket.socket]) -> None:
    ports = Ports(tmp_path, 3, (2,))
    ports.connect_ahead()
    assert accepted(sockets) == 2
    with await ports.first() as connection:
        ports.close()
        assert connection.fileno() != -1, "it is whose it was given to"


async def test_a_connection_ahead_that_nobody_took_is_closed(tmp_path: Path, sockets: list[socket.socket]) -> None:
    ports = Ports(tmp_path, 1, (1,))
    ports.connect_ahead()
    sockets[0].settimeout(10)
    with sockets[0].accept()[0] as far:
        ports.close()
        assert far.recv(1) == b""


def test_a_directory_may_have_a_long_name(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    for listener in listen(long, [1, 7]):
        listener.close()
    assert port_path(long, 7).exists()


async def test_it_settles_when_a_port_that_was_left_is_free_again(tmp_path: Path) -> None:
    ports = Ports(tmp_path, 1, free=[1])
    ports.changed(1, is_open=False)
    waiting = asyncio.create_task(ports.settle())
    await asyncio.sleep(0)
    assert not waiting.done()
    ports.changed(1, is_open=True)
    await waiting
    assert ports.free == (1,)


async def test_it_plugs_a_port_for_a_copy_when_all_are_in_use(tmp_path: Path) -> None:
    (only,) = listen(tmp_path, [1])
    ports = Ports(tmp_path, 1, free=[1])
    plugged: list[int] = []

    async def plug(number: int, listener: socket.socket) -> None:
        plugged.append(number)
        ports.changed(number, is_open=True)

    with only, ports.take(last=True):
        ports.serve(plug)
        await ports.settle()
    assert (plugged, ports.free) == ([2], (2,))
