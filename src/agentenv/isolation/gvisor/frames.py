"""Frames of the agent protocol as they pass by: which stream and kind, and the rest of the bytes unread.

Whoever carries frames for others need not understand them (`agentenv.guest.frames` does); only the stream's number is changed on the way.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from agentenv.errors import ProtocolError
from agentenv.guest.frames import MAX_FRAME, Kind

_LENGTH = struct.Struct(">I")
_ARRAY_OF_THREE = 0x93
# MessagePack: the first byte of an unsigned integer of 1, 2 or 4 bytes; smaller ones are that byte itself.
_UINT_WIDTH = {0xCC: 1, 0xCD: 2, 0xCE: 4}
_LARGEST_FIXINT = 0x7F
_KINDS = {kind.value: kind for kind in Kind}


class Passing(NamedTuple):
    """One frame; `body` is its MessagePack, not decoded."""

    stream: int
    kind: Kind
    body: bytes


class FrameReader:
    """Cuts a byte stream into frames; what is not complete yet waits in `partial`."""

    __slots__ = ("partial",)

    def __init__(self, partial: bytes = b"") -> None:
        self.partial = bytearray(partial)

    def feed(self, data: bytes) -> list[Passing]:
        """The frames that `data` completes. Raises `ProtocolError`, after which the stream cannot be used."""
        space = self.partial
        space += data
        frames: list[Passing] = []
        start = 0
        while len(space) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(space, start)
            if length > MAX_FRAME:
                raise ProtocolError(f"a frame of {length} bytes was announced; the protocol allows {MAX_FRAME}.")
            end = start + _LENGTH.size + length
            if len(space) < end:
                break
            frames.append(_parse(bytes(space[start + _LENGTH.size : end])))
            start = end
        del space[:start]
        return frames


def _parse(payload: bytes) -> Passing:
    first = payload[1] if len(payload) > 1 else 0xFF
    width = _UINT_WIDTH.get(first, 0)
    at = 2 + width
    if len(payload) <= at + 1 or payload[0] != _ARRAY_OF_THREE or (not width and first > _LARGEST_FIXINT):
        raise ProtocolError("a frame is no [stream, kind, body].")
    stream = int.from_bytes(payload[2:at]) if width else first
    kind = _KINDS.get(payload[at])
    if kind is None:
        raise ProtocolError(f"a frame has the unknown kind {payload[at]}.")
    return Passing(stream, kind, payload[at + 1 :])


def join(stream: int, kind: Kind, body: bytes) -> bytes:
    """The frame's bytes on the wire. Raises `ProtocolError` when a longer number of its stream makes it too long."""
    number = bytes((stream,)) if stream <= _LARGEST_FIXINT else b"\xce" + stream.to_bytes(4)
    head = b"\x93" + number + bytes((kind,))
    length = len(head) + len(body)
    if length > MAX_FRAME:
        raise ProtocolError(f"a frame of {length} bytes is longer than the {MAX_FRAME} that the agent protocol allows.")
    return _LENGTH.pack(length) + head + body


def content_size(body: bytes) -> int:
    """How many bytes the content of a DATA or DATA_ERR frame has, 0 for a body that is none."""
    form = body[0] if body else 0
    width = {0xC4: 1, 0xC5: 2, 0xC6: 4}.get(form, 0)
    return int.from_bytes(body[1 : 1 + width])


def pack(value: object) -> bytes:
    """A body."""
    return msgspec.msgpack.encode(value)
