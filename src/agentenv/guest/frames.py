"""The frames of the agent protocol (docs/agent-protocol.md): encoding, and decoding that trusts nothing.

A frame is a big-endian u32 length and a MessagePack array `[stream, kind, body]`. The peer may be a program that
an agent under training has taken over, so the decoder checks lengths, the kind, and that each kind carries the body it must.
"""

from __future__ import annotations

import enum
import struct
from typing import Any

import msgspec

from agentenv.errors import ProtocolError

MAX_FRAME = 1_048_576
"""Largest number of bytes after the length field."""

MAX_DATA = 262_144
"""Largest payload of one DATA or DATA_ERR frame, in bytes."""

INITIAL_CREDIT = 262_144
"""Bytes that may be sent on a fresh stream in each direction before the first WINDOW."""

MAX_STREAM = 0xFFFFFFFF


class Kind(enum.IntEnum):
    """What a frame means; numbers of the protocol."""

    OPEN = 0
    DATA = 1
    DATA_ERR = 2
    END = 3
    WINDOW = 4
    EVENT = 5
    CALL = 6
    RESULT = 7
    ERROR = 8
    CANCEL = 9


Body = bytes | int | dict[str, Any] | None
Frame = tuple[int, Kind, Body]

_BODY_TYPES: dict[int, tuple[Kind, type]] = {
    Kind.OPEN: (Kind.OPEN, dict),
    Kind.DATA: (Kind.DATA, bytes),
    Kind.DATA_ERR: (Kind.DATA_ERR, bytes),
    Kind.END: (Kind.END, type(None)),
    Kind.WINDOW: (Kind.WINDOW, int),
    Kind.EVENT: (Kind.EVENT, dict),
    Kind.CALL: (Kind.CALL, dict),
    Kind.RESULT: (Kind.RESULT, dict),
    Kind.ERROR: (Kind.ERROR, dict),
    Kind.CANCEL: (Kind.CANCEL, type(None)),
}

_LENGTH = struct.Struct(">I")
# 0x93 array of three, 0xCE uint32 (stream), the kind as a fixint, 0xC6 bin32: always the widest form, so that the header has one size.
_DATA_HEADER = struct.Struct(">IBBIBBI")
_DATA_OVERHEAD = _DATA_HEADER.size - _LENGTH.size

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, int, bytes | int | dict[str, Any] | None])


def encode(stream: int, kind: Kind, body: Body = None) -> bytes:
    """One whole frame, length included. Raises `ProtocolError` for one that is too long (an environment of a megabyte, say)."""
    payload = _encoder.encode((stream, kind.value, body))
    if len(payload) > MAX_FRAME:
        raise ProtocolError(
            f"a {kind.name} frame of {len(payload)} bytes is longer than the {MAX_FRAME} that the agent protocol allows.",
            remedy="Pass large content through files or stdin instead of arguments.",
        )
    return _LENGTH.pack(len(payload)) + payload


def data_header(stream: int, size: int, kind: Kind = Kind.DATA) -> bytes:
    """The bytes that go before a payload of `size` bytes, so that the payload itself is never copied into a frame."""
    return _DATA_HEADER.pack(_DATA_OVERHEAD + size, 0x93, 0xCE, stream, kind, 0xC6, size)


class Decoder:
    """Turns received bytes into frames without a copy of what is not yet complete.

    The owner receives into `buffer()`, tells `received(count)` and gets the complete frames. After a `ProtocolError` the decoder is of no
    more use: the connection must be closed.
    """

    __slots__ = ("_end", "_space", "_start", "_view")

    def __init__(self) -> None:
        self._space = bytearray(_LENGTH.size + MAX_FRAME)
        self._view = memoryview(self._space)
        self._start = 0
        self._end = 0

    def buffer(self) -> memoryview:
        """The free space that the next bytes go to; never empty."""
        return self._view[self._end :]

    def received(self, count: int) -> list[Frame]:
        """Takes `count` bytes that now lie in `buffer()`; returns the frames that they complete, in order."""
        self._end += count
        frames: list[Frame] = []
        while self._end - self._start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._space, self._start)
            if length > MAX_FRAME:
                raise ProtocolError(f"the agent announced a frame of {length} bytes; the protocol allows {MAX_FRAME}.")
            first = self._start + _LENGTH.size
            if self._end - first < length:
                break
            frames.append(_parse(self._view[first : first + length]))
            self._start = first + length
        self._compact()
        return frames

    def _compact(self) -> None:
        """Moves an incomplete frame to the front where the space behind it might not hold its rest."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = self._end - self._start
            self._space[:rest] = self._space[self._start : self._end]
            self._start, self._end = 0, rest


def _parse(payload: memoryview) -> Frame:
    try:
        stream, number, body = _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the agent sent a frame that is no [stream, kind, body]: {error}.") from error
    known = _BODY_TYPES.get(number)
    if known is None:
        raise ProtocolError(f"the agent sent a frame of the unknown kind {number}.")
    kind, body_type = known
    if type(body) is not body_type:
        raise ProtocolError(f"the agent sent a {kind.name} frame whose body is {type(body).__name__}, not {body_type.__name__}.")
    if not 0 <= stream <= MAX_STREAM:
        raise ProtocolError(f"the agent sent a frame for the stream {stream}; streams are unsigned 32-bit numbers.")
    if isinstance(body, bytes) and len(body) > MAX_DATA:
        raise ProtocolError(f"the agent sent {len(body)} bytes in one {kind.name} frame; the protocol allows {MAX_DATA}.")
    if isinstance(body, int) and body < 0:
        raise ProtocolError(f"the agent sent a WINDOW of {body} bytes.")
    return stream, kind, body
