"""The multiplexed connection: streams side by side, flow control, and every way in which it can end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.guest.local_agent import LocalAgent

from agentenv.errors import ProtocolError
from agentenv.guest import AgentFailure, Connection, ConnectionLost
from agentenv.guest.frames import INITIAL_CREDIT, Body, Decoder, Frame, Kind, encode
from agentenv.guest.stream import Incoming, Stream


class Peer:
    """The other end of a connection, played by the test frame by frame."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = Decoder()
        self._frames: list[Frame] = []

    async def send(self, *frame: Any) -> None:
        await self.send_raw(encode(*frame))

    async def send_raw(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive(self) -> Frame:
        loop = asyncio.get_running_loop()
        while not self._frames:
            count = await loop.sock_recv_into(self._socket, self._decoder.buffer())
            self._frames += self._decoder.received(count)
        return self._frames.pop(0)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Connection, Peer]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    connection, peer = Connection.open(ours), Peer(theirs)
    yield connection, peer
    connection.close()
    peer.close()


async def test_calls_need_not_wait_for_each_other(connection: Connection) -> None:
    answers = await asyncio.gather(*(connection.call("ping", payload=bytes([number])) for number in range(100)))
    assert [answer["payload"] for answer in answers] == [bytes([number]) for number in range(100)]
    assert connection.hello is not None
    assert connection.hello["protocol"] == 1


async def test_a_refusal_carries_the_errno(connection: Connection) -> None:
    with pytest.raises(AgentFailure) as caught:
        await connection.call("stat", path="/no/such/file", follow=True)
    assert caught.value.code == "ENOENT"


async def test_an_unknown_operation_is_refused_and_the_connection_goes_on(connection: Connection) -> None:
    with pytest.raises(AgentFailure):
        await connection.call("no-such-operation")
    assert (await connection.call("ping", payload=b"x"))["payload"] == b"x"


async def test_when_the_agent_dies_every_open_stream_fails(connection: Connection, agent: LocalAgent) -> None:
    await connection.call("ping", payload=b"")
    waiting = [asyncio.create_task(connection.call("exec", argv=["sleep", "60"])) for _ in range(5)]
    await asyncio.sleep(0)
    agent.kill()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, ConnectionLost) for result in results)
    assert connection.closed
    with pytest.raises(ConnectionLost):
        await connection.call("ping", payload=b"")


async def test_a_cancelled_caller_cancels_the_operation(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    task = asyncio.create_task(connection.call("ping", payload=b""))
    number, kind, _ = await peer.receive()
    assert kind is Kind.OPEN
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await peer.receive() == (number, Kind.CANCEL, None)
    await peer.send(number, Kind.RESULT, {})


async def test_a_sender_stops_at_its_credit(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    stream = Stream("write")
    connection.start(stream, "write", {"path": "/x"})
    number = (await peer.receive())[0]
    sending = asyncio.create_task(stream.send(b"x" * (INITIAL_CREDIT + 5)))
    received = 0
    while received < INITIAL_CREDIT:
        _, kind, body = await peer.receive()
        assert kind is Kind.DATA
        received += len(bytes(body))  # type: ignore[arg-type]
    assert received == INITIAL_CREDIT
    assert not sending.done()
    await peer.send(number, Kind.WINDOW, 5)
    assert await peer.receive() == (number, Kind.DATA, b"xxxxx")
    await sending


async def test_a_sender_without_credit_ends_when_the_operation_does(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    stream = Stream("write")
    connection.start(stream, "write", {"path": "/x"})
    number = (await peer.receive())[0]
    sending = asyncio.create_task(stream.send(b"x" * (2 * INITIAL_CREDIT)))
    await peer.receive()
    await peer.send(number, Kind.ERROR, {"code": "ENOSPC", "message": "full"})
    await sending
    with pytest.raises(AgentFailure, match="ENOSPC"):
        await stream.result()


async def test_consumed_bytes_are_given_back(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    stream = Incoming("read")
    connection.start(stream, "read", {"path": "/x"})
    number = (await peer.receive())[0]
    await peer.send(number, Kind.DATA, b"x" * INITIAL_CREDIT)
    assert len(await stream.read()) == INITIAL_CREDIT
    assert await peer.receive() == (number, Kind.WINDOW, INITIAL_CREDIT)


@pytest.mark.parametrize(
    "frame",
    [
        (1, Kind.OPEN, {}),
        (1, Kind.DATA, b"content that a ping has not"),
        (1, Kind.EVENT, {"event": "surprise"}),
        (2, Kind.RESULT, {}),
        (0, Kind.RESULT, {}),
        (0, Kind.EVENT, {"event": "hello", "protocol": 2}),
    ],
)
async def test_what_the_protocol_forbids_breaks_the_connection(pair: tuple[Connection, Peer], frame: tuple[int, Kind, Body]) -> None:
    connection, peer = pair
    task = asyncio.create_task(connection.call("ping", payload=b""))
    await peer.receive()
    await peer.send(*frame)
    with pytest.raises(ProtocolError):
        await task
    assert connection.closed


async def test_more_than_the_credit_breaks_the_connection(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    stream = Incoming("read")
    connection.start(stream, "read", {"path": "/x"})
    number = (await peer.receive())[0]
    await peer.send(number, Kind.DATA, b"x" * INITIAL_CREDIT)
    await peer.send(number, Kind.DATA, b"x")
    with pytest.raises(ProtocolError, match="more"):
        await stream.result()


async def test_noise_breaks_the_connection(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    task = asyncio.create_task(connection.call("ping", payload=b""))
    await peer.receive()
    await peer.send_raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ProtocolError):
        await task


async def test_a_frame_of_a_stream_that_is_over_is_ignored(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    task = asyncio.create_task(connection.call("ping", payload=b""))
    number = (await peer.receive())[0]
    await peer.send(number, Kind.RESULT, {"payload": b"1"})
    await peer.send(number, Kind.WINDOW, 5)
    await peer.send(number, Kind.ERROR, {"code": "EIO", "message": "late"})
    assert await task == {"payload": b"1"}
    again = asyncio.create_task(connection.call("ping", payload=b""))
    number = (await peer.receive())[0]
    await peer.send(number, Kind.RESULT, {"payload": b"2"})
    assert await again == {"payload": b"2"}


async def test_closing_is_idempotent_and_fails_what_is_open(pair: tuple[Connection, Peer]) -> None:
    connection, peer = pair
    task = asyncio.create_task(connection.call("ping", payload=b""))
    await peer.receive()
    connection.close()
    connection.close()
    with pytest.raises(ConnectionLost, match="closed by its owner"):
        await task
