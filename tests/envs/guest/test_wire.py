"""Frames: what is written is read back, and nothing else is accepted."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.envs.guest.wire import (
    HEADER,
    MAX_BODY,
    OUTCOME,
    EndOfStream,
    Kind,
    WireError,
    frame,
    parse_header,
    receive,
    split_transition,
)


@given(kind=st.sampled_from(Kind), body=st.binary(max_size=2000))
def test_a_frame_arrives_as_it_was_sent(kind: Kind, body: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(frame(kind, body))
        assert receive(there) == (kind, 0, bytearray(body))


@given(header=st.binary(min_size=8, max_size=8))
def test_any_header_is_either_known_or_refused(header: bytes) -> None:
    try:
        length, kind, flags = parse_header(header)
    except WireError:
        return
    assert HEADER.pack(length, kind, flags, 0) == header
    assert length <= MAX_BODY
    assert flags == 0 or kind is Kind.TRANSITION


def test_a_stream_that_ends_in_a_frame_is_an_end_of_stream() -> None:
    here, there = socket.socketpair()
    with there:
        with here:
            here.sendall(frame(Kind.RESET, b"{}")[:-1])
        with pytest.raises(EndOfStream, match="after 1 of 2 bytes"):
            receive(there)


def test_a_body_beyond_the_limit_is_refused_on_both_sides() -> None:
    with pytest.raises(WireError, match="longer than"):
        frame(Kind.SAVE, bytes(MAX_BODY + 1))
    with pytest.raises(WireError, match="at most"):
        parse_header(HEADER.pack(MAX_BODY + 1, Kind.SAVE, 0, 0))


@given(
    reward=st.floats(allow_nan=False),
    observation=st.binary(max_size=100),
    info=st.binary(max_size=100),
    fixed=st.booleans(),
)
def test_the_parts_of_a_transition(reward: float, observation: bytes, info: bytes, fixed: bool) -> None:
    body = OUTCOME.pack(reward, len(info), 0) + observation + info
    size = len(observation) if fixed else None
    assert split_transition(memoryview(body), size) == (reward, observation, info)


@given(body=st.binary(max_size=60), size=st.none() | st.integers(0, 60))
def test_a_transition_whose_parts_do_not_add_up_is_refused(body: bytes, size: int | None) -> None:
    try:
        _, observation, info = split_transition(memoryview(body), size)
    except WireError:
        return
    assert OUTCOME.size + len(observation) + len(info) == len(body)
    assert size is None or len(observation) == size
