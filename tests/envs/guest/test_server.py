"""The server, asked by hand over a socket pair: the frames of docs/step-protocol.md as another language would write and read them."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.samples import Counter, Talker

from agentenv.envs.guest.server import Server
from agentenv.envs.guest.values import loads
from agentenv.envs.guest.wire import Kind, receive


class Peer:
    """A host that writes frames byte by byte."""

    def __init__(self, environment: Any) -> None:
        self.stream, served = socket.socketpair()
        self.stream.settimeout(20)
        self.server = Server(environment, "sample")
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._serve, args=(served,), daemon=True)
        self.thread.start()
        self.hello = self.answer()

    def _serve(self, served: socket.socket) -> None:
        with served:
            try:
                self.server.serve(served)
            except Exception as problem:  # noqa: BLE001 - whatever ends the service is what the tests look at
                self.failure = problem

    def send(self, kind: int, body: bytes = b"") -> None:
        self.stream.sendall(struct.pack("<IBBH", len(body), kind, 0, 0) + body)

    def answer(self) -> tuple[Kind, int, bytes]:
        kind, flags, body = receive(self.stream)
        return kind, flags, bytes(body)

    def ask(self, kind: int, body: bytes = b"") -> tuple[Kind, int, bytes]:
        self.send(kind, body)
        return self.answer()

    def close(self) -> None:
        self.stream.close()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def peer() -> Iterator[Peer]:
    asked = Peer(Counter(length=3))
    yield asked
    asked.close()


def test_the_hello(peer: Peer) -> None:
    kind, flags, body = peer.hello
    assert (kind, flags) == (Kind.HELLO, 0)
    assert json.loads(body) == {
        "protocol": 1,
        "environment": "sample",
        "observation_space": {"type": "box", "dtype": "<f4", "shape": [2], "low": 0.0, "high": 1000.0},
        "action_space": {"type": "discrete", "dtype": "<i8", "n": 3, "start": 0},
        "render_modes": ["ansi"],
        "render_mode": None,
        "render_fps": None,
        "capabilities": {"save": False, "scores": False},
    }


def test_an_episode_byte_by_byte(peer: Peer) -> None:
    kind, flags, body = peer.ask(1, b'{"seed":4,"options":null}')
    reward, info_size, reserved = struct.unpack_from("<dII", body)
    assert (kind, flags, reward, reserved) == (Kind.TRANSITION, 0, 0.0, 0)
    assert struct.unpack_from("<2f", body, 16)[0] == 0.0
    assert json.loads(body[-info_size:]) == {"episode": 1, "options": {}}
    kind, flags, body = peer.ask(2, struct.pack("<q", 2))
    assert (kind, flags, body[:16]) == (Kind.TRANSITION, 0, struct.pack("<dII", 2.0, 11, 0))
    assert (struct.unpack_from("<f", body, 16), body[24:]) == ((1.0,), b'{"steps":1}')
    kind, flags, body = peer.ask(2, struct.pack("<q", 0))
    assert (kind, flags, len(body)) == (Kind.TRANSITION, 0, 24)
    kind, flags, body = peer.ask(2, struct.pack("<q", 0))
    assert (kind, flags) == (Kind.TRANSITION, 1)


def test_a_frame_in_pieces(peer: Peer) -> None:
    content = struct.pack("<IBBH", 25, 1, 0, 0) + b'{"seed":4,"options":null}'
    for byte in content:
        peer.stream.sendall(bytes([byte]))
    assert peer.answer()[0] is Kind.TRANSITION


def test_errors_come_back_with_their_traceback(peer: Peer) -> None:
    kind, _, body = peer.ask(6, b'{"name":"add","args":["x"],"kwargs":{"other":1}}')
    content = json.loads(body)
    assert (kind, content["type"]) == (Kind.ERROR, "TypeError")
    assert "return one + other" in content["traceback"]
    assert peer.ask(6, b'{"name":"add","args":[2],"kwargs":{"other":1}}')[2] == b"3"


def test_attributes_can_be_read_and_set(peer: Peer) -> None:
    assert peer.ask(7, b'{"name":"length","value":9}')[:1] == (Kind.VALUE,)
    assert loads(peer.ask(6, b'{"name":"length","args":[],"kwargs":{}}')[2]) == 9


def test_what_cannot_be_saved_says_so(peer: Peer) -> None:
    kind, _, body = peer.ask(3)
    assert kind is Kind.ERROR
    assert "has no save() and load()" in json.loads(body)["message"]


def test_close_ends_the_service(peer: Peer) -> None:
    assert peer.ask(8) == (Kind.VALUE, 0, b"null")
    peer.thread.join(20)
    assert peer.server.closed


def test_spaces_that_vary_travel_as_json() -> None:
    peer = Peer(Talker())
    peer.ask(1, b'{"seed":null,"options":null}')
    _, _, body = peer.ask(2, b'"abc"')
    assert struct.unpack_from("<dII", body) == (3.0, 0, 0)
    assert json.loads(body[16:]) == {"text": "ABC", "count": 1}
    peer.close()


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<IBBH", 0, 65, 0, 0),
        struct.pack("<IBBH", 0, 99, 0, 0),
        struct.pack("<IBBH", 0, 1, 1, 0),
        struct.pack("<IBBH", 4, 2, 0, 0) + b"abcd",
        struct.pack("<IBBH", 0xFFFFFFFF, 1, 0, 0),
        struct.pack("<IBBH", 8, 2, 0, 0) + bytes(8) + struct.pack("<IBBH", 8, 2, 0, 0),
    ],
)
def test_what_the_protocol_does_not_allow_ends_the_connection(peer: Peer, content: bytes) -> None:
    peer.stream.sendall(content)
    peer.thread.join(20)
    assert isinstance(peer.failure, ValueError)
    assert not peer.server.closed


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=100))
def test_garbage_never_ends_the_server_in_any_other_way(content: bytes) -> None:
    peer = Peer(Counter())
    peer.stream.sendall(content)
    peer.stream.shutdown(socket.SHUT_WR)
    peer.thread.join(20)
    peer.close()
    assert peer.failure is None or isinstance(peer.failure, (ValueError, ConnectionError))
