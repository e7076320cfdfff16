"""Frames: what is encoded comes back, however it is cut; what is no frame is refused and nothing else happens."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import ProtocolError
from agentenv.guest.frames import MAX_DATA, MAX_FRAME, Body, Decoder, Frame, Kind, data_header, encode

words = st.text("aä€😀\0\n ", max_size=6)
scalars: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | words | st.binary(max_size=20)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=6)
maps = st.dictionaries(words, values, max_size=4)
bodies: dict[Kind, st.SearchStrategy[Body]] = {
    Kind.DATA: st.binary(max_size=300),
    Kind.DATA_ERR: st.binary(max_size=300),
    Kind.END: st.none(),
    Kind.CANCEL: st.none(),
    Kind.WINDOW: st.integers(0, 2**32),
}
frames = st.sampled_from(Kind).flatmap(lambda kind: st.tuples(st.integers(0, 2**32 - 1), st.just(kind), bodies.get(kind, maps)))


def feed(decoder: Decoder, data: bytes) -> list[Frame]:
    """Hands over `data` in as many pieces as the decoder has space for."""
    got: list[Frame] = []
    while True:
        space = decoder.buffer()
        piece, data = data[: len(space)], data[len(space) :]
        space[: len(piece)] = piece
        for stream, kind, body in decoder.received(len(piece)):
            got.append((stream, kind, bytes(body) if isinstance(body, memoryview) else body))
        if not data:
            return got


def test_space_grows_with_what_comes_and_loses_nothing() -> None:
    sent: list[Frame] = [(number, Kind.DATA, bytes([number]) * size) for number, size in enumerate((10, 16 << 10, 100_000, MAX_DATA, 5))]
    decoder = Decoder()
    assert len(decoder.buffer()) < 100_000
    assert feed(decoder, b"".join(encode(*frame) for frame in sent)) == sent
    assert len(decoder.buffer()) > MAX_DATA


@given(st.lists(frames, max_size=6), st.lists(st.integers(1, 40), max_size=50))
def test_frames_survive_any_cut(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(encode(*frame) for frame in sent)
    decoder, got = Decoder(), []
    for cut in cuts:
        got += feed(decoder, data[:cut])
        data = data[cut:]
    got += feed(decoder, data)
    assert got == sent


@given(st.integers(0, 2**32 - 1), st.binary(max_size=1000), st.sampled_from([Kind.DATA, Kind.DATA_ERR]))
def test_a_data_header_and_its_payload_are_one_frame(stream: int, payload: bytes, kind: Kind) -> None:
    assert feed(Decoder(), data_header(stream, len(payload), kind) + payload) == [(stream, kind, payload)]


@given(st.binary(max_size=400))
def test_noise_is_refused_or_waited_for(noise: bytes) -> None:
    decoder = Decoder()
    try:
        for stream, kind, _ in feed(decoder, noise):
            assert 0 <= stream < 2**32
            assert kind in Kind
    except ProtocolError:
        pass


@given(values)
def test_any_other_value_in_a_frame_is_refused(value: object) -> None:
    payload = msgspec.msgpack.encode(value)
    with pytest.raises(ProtocolError):
        feed(Decoder(), struct.pack(">I", len(payload)) + payload)


@pytest.mark.parametrize(
    "frame",
    [
        [1, 10, None],
        [1, -1, None],
        [-1, 3, None],
        [2**32, 3, None],
        [1, 1, "text"],
        [1, 4, -1],
        [1, 4, True],
        [1, 3, 0],
        [1, 7, []],
        [1, 1, b"x" * (MAX_DATA + 1)],
        [1, 3],
        [1, 3, None, None],
        ["1", 3, None],
        {"stream": 1},
        [1, 5, {1: "a key that is no text"}],
    ],
)
def test_each_rule_of_the_protocol_is_checked(frame: object) -> None:
    payload = msgspec.msgpack.encode(frame)
    with pytest.raises(ProtocolError):
        feed(Decoder(), struct.pack(">I", len(payload)) + payload)


def test_a_length_over_the_limit_is_refused_before_its_content_comes() -> None:
    with pytest.raises(ProtocolError, match="1048577"):
        feed(Decoder(), struct.pack(">I", MAX_FRAME + 1))


def test_the_longest_frame_fits() -> None:
    body = {"x": "y" * (MAX_FRAME - 20)}
    assert feed(Decoder(), encode(1, Kind.EVENT, body)) == [(1, Kind.EVENT, body)]


def test_a_frame_that_the_agent_would_refuse_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="OPEN frame"):
        encode(1, Kind.OPEN, {"env": "x" * MAX_FRAME})


def test_deep_nesting_does_not_overflow_the_stack() -> None:
    payload = b"\x93\x01\x05" + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(ProtocolError):
        feed(Decoder(), struct.pack(">I", len(payload)) + payload)
