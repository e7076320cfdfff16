"""Published ports over real sockets: both directions, half-close, refusals, many at once, and the end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from agentenv.errors import SandboxDied
from agentenv.node.portforward import LOOPBACK, PortForward

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def ports() -> AsyncIterator[PortForward]:
    made = PortForward()
    yield made
    await made.close()


async def _publish(ports: PortForward, handler: Handler) -> int:
    """A server that stands for one inside the sandbox, published; returns the host's port."""
    server = await asyncio.start_server(handler, LOOPBACK, 0)
    inner = server.sockets[0].getsockname()[1]
    return await ports.forward(80, lambda port: socket.create_connection((LOOPBACK, inner)))


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_bytes_go_both_ways(ports: PortForward) -> None:
    reader, writer = await asyncio.open_connection(LOOPBACK, await _publish(ports, _echo))
    for word in (b"one", b"two", b"three"):
        writer.write(word)
        assert await reader.readexactly(len(word)) == word
    writer.close()


async def test_an_end_in_one_direction_leaves_the_other_open(ports: PortForward) -> None:
    async def sum_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = await reader.read(-1)
        writer.write(f"{len(received)} bytes".encode())
        writer.close()

    reader, writer = await asyncio.open_connection(LOOPBACK, await _publish(ports, sum_up))
    writer.write(bytes(100_000))
    writer.write_eof()
    assert await reader.read(-1) == b"100000 bytes"
    writer.close()


async def test_much_goes_through_unchanged_and_many_at_once(ports: PortForward) -> None:
    port = await _publish(ports, _echo)

    async def one(number: int) -> bool:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        sent = bytes([number]) * 200_000

        async def send() -> None:
            writer.write(sent)
            await writer.drain()
            writer.write_eof()

        received, _ = await asyncio.gather(reader.read(-1), send())
        writer.close()
        return received == sent

    assert all(await asyncio.gather(*(one(number) for number in range(64))))


async def test_a_sender_is_held_back_while_nobody_reads(ports: PortForward) -> None:
    release = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        while await reader.read(1 << 20):
            pass
        writer.write(b"all")
        writer.close()

    reader, writer = await asyncio.open_connection(LOOPBACK, await _publish(ports, wait))
    writer.write(bytes(64 << 20))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(writer.drain(), 0.2)
    release.set()
    await writer.drain()
    writer.write_eof()
    assert await reader.read(-1) == b"all"
    writer.close()


@pytest.mark.parametrize("error", [ConnectionRefusedError(), SandboxDied("s1", "killed")])
async def test_a_refusal_inside_is_a_reset_outside(ports: PortForward, error: Exception) -> None:
    def refuse(port: int) -> socket.socket:
        raise error

    reader, writer = await asyncio.open_connection(LOOPBACK, await ports.forward(81, refuse))
    with pytest.raises(ConnectionResetError):
        assert await reader.read(1) == b"never"
    writer.close()


async def test_a_client_that_breaks_off_is_seen_inside(ports: PortForward) -> None:
    seen: asyncio.Future[type[BaseException] | None] = asyncio.get_running_loop().create_future()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        try:
            await reader.read(-1)
            seen.set_result(None)
        except ConnectionResetError as error:
            seen.set_result(type(error))
        writer.close()

    port = await _publish(ports, watch)
    client = socket.create_connection((LOOPBACK, port))
    client.setblocking(False)
    assert await asyncio.get_running_loop().sock_recv(client, 5) == b"hello"
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    assert await asyncio.wait_for(seen, 30) is ConnectionResetError


async def test_unix_sockets_are_dialled_too(ports: PortForward) -> None:
    inner, outer = socket.socketpair()
    reader, writer = await asyncio.open_connection(LOOPBACK, await ports.forward(82, lambda port: inner))
    writer.write(b"x")
    await writer.drain()
    outer.setblocking(False)
    assert await asyncio.get_running_loop().sock_recv(outer, 1) == b"x"
    outer.close()
    assert await reader.read(-1) == b""
    writer.close()


async def test_a_port_is_published_once_and_only_on_loopback(ports: PortForward) -> None:
    first = await _publish(ports, _echo)
    assert await ports.forward(80, lambda port: socket.create_connection((LOOPBACK, 1))) == first
    assert await ports.forward(81, lambda port: socket.create_connection((LOOPBACK, 1))) != first


async def test_closing_breaks_everything_off_even_a_dial_that_hangs(ports: PortForward) -> None:
    dialling, answer = threading.Event(), threading.Event()
    late, far = socket.socketpair()

    def hang(port: int) -> socket.socket:
        dialling.set()
        answer.wait()
        return late

    echo_port, hanging_port = await _publish(ports, _echo), await ports.forward(81, hang)
    reader, writer = await asyncio.open_connection(LOOPBACK, echo_port)
    writer.write(b"x")
    assert await reader.read(1) == b"x"
    hanging_reader, hanging_writer = await asyncio.open_connection(LOOPBACK, hanging_port)
    await asyncio.to_thread(dialling.wait)
    await ports.close()
    await ports.close()
    for one in (reader, hanging_reader):
        with pytest.raises(ConnectionResetError):
            await one.read(1)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(LOOPBACK, echo_port)
    answer.set()
    assert await asyncio.to_thread(far.recv, 1) == b""
    writer.close()
    hanging_writer.close()
    far.close()
