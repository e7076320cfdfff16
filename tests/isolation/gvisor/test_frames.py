"""Frames that only pass by: cut anywhere, they come out as they went in, and what is no frame is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import ProtocolError
from agentenv.guest.frames import MAX_FRAME, Kind, data_header, encode
from agentenv.isolation.gvisor.frames import FrameReader, Passing, content_size, join, pack

streams = st.integers(0, 0xFFFFFFFF)
frames = st.one_of(
    st.tuples(streams, st.just(Kind.OPEN), st.dictionaries(st.text(max_size=5), st.binary(max_size=40), max_size=3)),
    st.tuples(streams, st.just(Kind.DATA), st.binary(max_size=400)),
    st.tuples(streams, st.just(Kind.WINDOW), st.integers(0, 1 << 32)),
    st.tuples(streams, st.just(Kind.CANCEL), st.none()),
)


@given(st.lists(frames, max_size=8), st.lists(st.integers(1, 50)))
def test_frames_come_out_whole_however_they_are_cut(sent: list[tuple[int, Kind, object]], cuts: list[int]) -> None:
    data = b"".join(encode(stream, kind, body) for stream, kind, body in sent)  # type: ignore[arg-type]
    reader, found, at = FrameReader(), [], 0
    for size in [*cuts, len(data)]:
        found += reader.feed(data[at : at + size])
        at += size
    assert found == [Passing(stream, kind, pack(body)) for stream, kind, body in sent]
    assert reader.partial == b""


@given(frames, streams)
def test_a_stream_gets_another_number_and_keeps_its_body(frame: tuple[int, Kind, object], number: int) -> None:
    stream, kind, body = frame
    (passing,) = FrameReader().feed(encode(stream, kind, body))  # type: ignore[arg-type]
    assert FrameReader().feed(join(number, passing.kind, passing.body)) == [Passing(number, kind, pack(body))]


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    reader = FrameReader()
    try:
        reader.feed(len(data).to_bytes(4) + data)
    except ProtocolError:
        return
    assert reader.partial == b""


@pytest.mark.parametrize(
    "data",
    [b"\x00\x20\x00\x01", b"\0\0\0\3\x93\x01\x0a", b"\0\0\0\3\x92\x01\x01", b"\0\0\0\4\x93\xc0\x01\xc0", b"\0\0\0\0", b"\0\0\0\2\x93\x01"],
    ids=["too long", "unknown kind", "two items", "no number", "empty", "cut"],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameReader().feed(data)


def test_content_is_measured_in_every_form() -> None:
    assert [content_size(pack(bytes(size))) for size in (0, 255, 256, 70000)] == [0, 255, 256, 70000]
    assert content_size(data_header(1, 5)[-5:] + b"12345") == 5
    assert content_size(pack(None)) == 0


def test_a_frame_that_grows_too_long_is_refused() -> None:
    body = pack("x" * (MAX_FRAME - 8))
    assert len(join(1, Kind.OPEN, body)) == 4 + MAX_FRAME
    with pytest.raises(ProtocolError, match="longer"):
        join(1000, Kind.OPEN, body)
