"""Plain sockets into a sandbox, with the descriptor handed out and spliced."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.guest.local_agent import LocalAgent

from agentenv.errors import ProtocolError
from agentenv.guest import AgentFailure, ConnectionLost, dial
from agentenv.guest.frames import Kind, encode


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends everything back, and closes when the sender does."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def receive_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("pass_descriptor", [True, False], ids=["descriptor", "spliced"])
def test_bytes_go_both_ways_and_half_close_is_seen(agent: LocalAgent, echo_port: int, pass_descriptor: bool) -> None:
    content = os.urandom(3_000_000)
    with dial(agent.dial(), echo_port, pass_descriptor=pass_descriptor) as connection:

        def send() -> None:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        received = receive_all(connection)
        sender.join()
    assert hashlib.sha256(received).digest() == hashlib.sha256(content).digest()


@pytest.mark.parametrize("pass_descriptor", [True, False], ids=["descriptor", "spliced"])
def test_a_unix_socket_inside(agent: LocalAgent, tmp_path: Path, pass_descriptor: bool) -> None:
    path = str(tmp_path / "inner.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        with dial(agent.dial(), path, pass_descriptor=pass_descriptor) as connection:
            inner, _ = server.accept()
            with inner:
                inner.sendall(b"hello")
                assert connection.recv(10) == b"hello"
            assert connection.recv(10) == b""


@pytest.mark.parametrize("pass_descriptor", [True, False], ids=["descriptor", "spliced"])
def test_a_closed_end_is_seen_at_the_other(agent: LocalAgent, tmp_path: Path, pass_descriptor: bool) -> None:
    path = str(tmp_path / "inner.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        dial(agent.dial(), path, pass_descriptor=pass_descriptor).close()
        inner, _ = server.accept()
        with inner:
            inner.settimeout(10)
            assert inner.recv(1) == b""


def test_a_refusal_carries_the_errno(agent: LocalAgent) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(AgentFailure) as caught:
        dial(agent.dial(), port, pass_descriptor=True)
    assert caught.value.code == "ECONNREFUSED"
    with pytest.raises(AgentFailure, match="ENOENT"):
        dial(agent.dial(), "/no/such/socket", pass_descriptor=True)


def answer_with(*parts: bytes, descriptors: tuple[int, ...] = ()) -> socket.socket:
    """A stream to an agent that has already sent its answer."""
    ours, theirs = socket.socketpair()
    socket.send_fds(theirs, [b"".join(parts)], descriptors)
    theirs.shutdown(socket.SHUT_WR)
    threading.Thread(target=lambda: receive_all(theirs), daemon=True).start()
    return ours


CONNECTED = encode(1, Kind.EVENT, {"event": "connected"})


@pytest.mark.parametrize("count", [0, 2])
def test_any_other_number_of_descriptors_is_refused_and_none_leaks(count: int) -> None:
    with Path(os.devnull).open() as null:
        before = set(Path("/proc/self/fd").iterdir())
        stream = answer_with(CONNECTED, descriptors=(null.fileno(),) * count)
        with pytest.raises(ProtocolError, match=f"{count} descriptors"):
            dial(stream, 80, pass_descriptor=True)
        assert stream.fileno() == -1
        assert len(set(Path("/proc/self/fd").iterdir()) - before) <= 1


def test_a_descriptor_that_is_no_socket_is_refused() -> None:
    with Path(os.devnull).open() as null, pytest.raises(ProtocolError, match="no socket"):
        dial(answer_with(CONNECTED, descriptors=(null.fileno(),)), 80, pass_descriptor=True)


def test_an_agent_that_says_nothing_or_nonsense() -> None:
    with pytest.raises(ConnectionLost):
        dial(answer_with(b""), 80, pass_descriptor=True)
    with pytest.raises(ProtocolError):
        dial(answer_with(encode(1, Kind.RESULT, {})), 80, pass_descriptor=True)
