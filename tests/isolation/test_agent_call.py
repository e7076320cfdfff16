"""One question to the agent and its answer, over a socket whose other end is the test."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from agentenv.errors import InfrastructureError, ProtocolError
from agentenv.guest.frames import Kind, encode
from agentenv.isolation.namespace.agent_call import ask, call

HELLO = encode(0, Kind.EVENT, {"event": "hello", "protocol": 1, "version": "x", "pid": 1})


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    yield near, far
    near.close()
    far.close()


def test_the_result_comes_back(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.sendall(HELLO + encode(1, Kind.RESULT, {"processes": 3}))
    assert call(near, "stats", timeout=5.0, detail=True) == {"processes": 3}
    assert far.recv(1000) == encode(1, Kind.OPEN, {"op": "stats", "detail": True})
    assert near.fileno() == -1


def test_a_connection_may_be_kept_for_more(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.sendall(HELLO + encode(1, Kind.RESULT, {}))
    assert ask(near, "thaw", number=1, timeout=5.0) == {}
    far.sendall(encode(2, Kind.RESULT, {"processes": 3}))
    assert ask(near, "stats", number=2, timeout=5.0) == {"processes": 3}
    assert far.recv(1000) == encode(1, Kind.OPEN, {"op": "thaw"}) + encode(2, Kind.OPEN, {"op": "stats"})


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (encode(1, Kind.ERROR, {"code": "EPERM", "message": "not now"}), InfrastructureError, r"refused 'stop_all': not now \(EPERM\)"),
        (encode(1, Kind.DATA, b"x"), ProtocolError, "with a DATA frame"),
        (b"\xff\xff\xff\xff", ProtocolError, "announced a frame"),
    ],
)
def test_other_answers_are_errors(pair: tuple[socket.socket, socket.socket], answer: bytes, error: type[Exception], text: str) -> None:
    near, far = pair
    far.sendall(HELLO + answer)
    with pytest.raises(error, match=text):
        call(near, "stop_all", timeout=5.0)


def test_an_agent_that_closes(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.sendall(HELLO)
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(InfrastructureError, match="closed the connection instead of answering 'ping'"):
        call(near, "ping", timeout=5.0)


def test_an_agent_that_says_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.sendall(HELLO)
    with pytest.raises(InfrastructureError, match=r"did not answer 'ping' in 0.01 s"):
        call(near, "ping", timeout=0.01)


def test_a_connection_that_broke(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.close()
    with pytest.raises(InfrastructureError, match="broke in 'ping'"):
        call(near, "ping", timeout=5.0)
