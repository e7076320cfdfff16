"""The host's end of the step protocol, against servers that lie."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.envs.samples import Counter

from agentenv.envs.batch import AnswerRows
from agentenv.envs.guest.server import Server
from agentenv.envs.guest.spaces import Box, Text, describe
from agentenv.envs.guest.values import dumps
from agentenv.envs.guest.wire import OUTCOME, Kind, frame
from agentenv.envs.gymnasium_spaces import build
from agentenv.envs.stream import StepStream
from agentenv.errors import EnvironmentFault, ProtocolError

HELLO = Server(Counter(), "sample").hello()


def against(content: bytes, timeout: float = 10.0) -> StepStream:
    """A stream whose other side says `content` and hangs up."""
    here, there = socket.socketpair()
    with there:
        there.sendall(content)
        there.shutdown(socket.SHUT_WR)
        return StepStream(here, timeout=timeout)


def test_the_hello_is_understood() -> None:
    hello = against(HELLO).hello
    assert (hello.environment, hello.can_save, hello.accepts_scores, hello.render_modes) == ("sample", False, False, ("ansi",))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (frame(Kind.VALUE, b"null"), "began with a VALUE"),
        (frame(Kind.HELLO, b"[1]"), "makes no sense"),
        (frame(Kind.HELLO, b"{nonsense"), "makes no sense"),
        (frame(Kind.HELLO, HELLO[8:].replace(b'"protocol":1', b'"protocol":2')), "speaks step protocol 2"),
        (frame(Kind.HELLO, HELLO[8:].replace(b'"shape":[2]', b'"shape":[-2]')), "makes no sense"),
        (struct.pack("<IBBH", 5, 77, 0, 0), "unknown kind 77"),
    ],
)
def test_a_false_hello(content: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        against(content)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_hello_is_understood_or_refused(content: bytes) -> None:
    with contextlib.suppress(ProtocolError, ConnectionError):
        against(frame(Kind.HELLO, content))
    with contextlib.suppress(ProtocolError, ConnectionError):
        against(content)


def test_silence_is_a_timeout() -> None:
    here, there = socket.socketpair()
    with there, here, pytest.raises(TimeoutError):
        StepStream(here, timeout=0.05)


def test_an_answer_of_another_kind_is_refused_and_an_error_raised() -> None:
    here, there = socket.socketpair()

    def serve() -> None:
        there.sendall(HELLO)
        for answer in (frame(Kind.STATE, b"x"), frame(Kind.ERROR, dumps({"type": "KeyError", "message": "m", "traceback": "t"}))):
            there.recv(100)
            there.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    with here, there:
        stream = StepStream(here, timeout=10.0)
        with pytest.raises(ProtocolError, match="answered RENDER with STATE"):
            stream.ask(Kind.RENDER)
        with pytest.raises(EnvironmentFault, match="raised KeyError: m") as caught:
            stream.ask(Kind.RENDER)
        assert caught.value.traceback == "t"
        thread.join()


def answer_of(content: bytes, space: Any) -> tuple[Any, tuple[int, dict[str, Any]]]:
    description = describe(space)
    rows = AnswerRows(description, build(description), 1)
    here, there = socket.socketpair()

    def serve() -> None:
        with there, contextlib.suppress(BrokenPipeError):
            there.sendall(content)

    thread = threading.Thread(target=serve)
    thread.start()
    with here:
        count = here.recv_into(rows.slots[0])
        answer = rows.finish(0, count, here, "sample")
    thread.join()
    return rows, answer


def test_a_transition_is_read_whatever_its_length() -> None:
    observation = np.arange(2, dtype="<f4").tobytes()
    for size in (0, 100, 5000, 300_000):
        info = dumps({"pad": "x" * size})
        body = OUTCOME.pack(1.5, len(info), 0) + observation + info
        content = struct.pack("<IBBH", len(body), Kind.TRANSITION, 2, 0) + body
        rows, (flags, got) = answer_of(content, Box(0.0, 1.0, (2,)))
        assert (flags, rows.rewards[0], len(got["pad"]), rows.one(0).tolist()) == (2, 1.5, size, [0.0, 1.0])


@settings(deadline=None)
@given(content=st.binary(max_size=80), kind=st.sampled_from([*Kind, 99]), cut=st.integers(0, 8), text=st.booleans())
def test_any_answer_is_understood_or_refused(content: bytes, kind: int, cut: int, text: bool) -> None:
    whole = struct.pack("<IBBH", len(content), kind, 0, 0) + content
    with contextlib.suppress(ProtocolError, ConnectionError, EnvironmentFault):
        answer_of(whole[: len(whole) - cut], Text(5) if text else Box(0.0, 1.0, (2,)))
