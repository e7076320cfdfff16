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
from agentenv.guest.errors import RequestTooLong

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


Content = bytes | memoryview
"""Bytes of a DATA frame. What the decoder gives is a view into its own space where that saves a copy: good until it is asked for more."""

Body = Content | int | dict[str, Any] | None
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

_DATA_KINDS = {kind.value: kind for kind in (Kind.DATA, Kind.DATA_ERR)}
# MessagePack: the first byte of an unsigned integer of 1, 2 or 4 bytes (smaller ones are that byte itself), and of a bin of 2 or 4.
_UINT_WIDTH = {0xCC: 1, 0xCD: 2, 0xCE: 4}
_BIN_WIDTH = {0xC5: 2, 0xC6: 4}

_LENGTH = struct.Struct(">I")
# 0x93 array of three, 0xCE uint32 (stream), the kind as a fixint, 0xC6 bin32: always the widest form, so that the header has one size.
_DATA_HEADER = struct.Struct(">IBBIBBI")
_DATA_OVERHEAD = _DATA_HEADER.size - _LENGTH.size

_LARGE = 8192
"""Frames from this size on are worth a parser that does not copy their content."""

_SPACE = 2 * (_LENGTH.size + MAX_FRAME)
_FIRST_SPACE = 16 << 10
"""Enough for commands and their answers: most connections never carry more at once, and need not hold, nor fill, megabytes."""
_LEAST_FREE = 256 << 10

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, int, bytes | int | dict[str, Any] | None])


def encode(stream: int, kind: Kind, body: Body = None) -> bytes:
    """One whole frame, length included. Raises `RequestTooLong` (an environment of a megabyte, say)."""
    payload = _encoder.encode((stream, kind.value, body))
    if len(payload) > MAX_FRAME:
        raise RequestTooLong(
            f"a {kind.name} frame of {len(payload)} bytes is longer than the {MAX_FRAME} that the agent protocol allows.",
            remedy="Pass large content through files or stdin instead of arguments.",
        )
    return _LENGTH.pack(len(payload)) + payload


def data_header(stream: int, size: int, kind: Kind = Kind.DATA) -> bytes:
    """The bytes that go before a payload of `size` bytes, so that the payload itself is never copied into a frame."""
    return _DATA_HEADER.pack(_DATA_OVERHEAD + size, 0x93, 0xCE, stream, kind, 0xC6, size)


class Decoder:
    """Turns received bytes into frames.

    The owner receives into `buffer()`, tells `received(count)` and gets the complete frames, to be handled before the next
    `buffer()`. After a `ProtocolError` the decoder is of no more use: the connection must be closed.
    """

    __slots__ = ("_end", "_space", "_start", "_view")

    def __init__(self) -> None:
        self._space = bytearray(_FIRST_SPACE)
        self._view = memoryview(self._space)
        self._start = 0
        self._end = 0

    def buffer(self) -> memoryview:
        """The free space that the next bytes go to; never empty. Views that were given out are void from now on."""
        if self._end == len(self._space) < _SPACE:
            self._grow()
        elif self._start == self._end:
            self._start = self._end = 0
        elif len(self._space) - self._end < _LEAST_FREE:
            rest = self._end - self._start
            self._space[:rest] = self._space[self._start : self._end]
            self._start, self._end = 0, rest
        return self._view[self._end :]

    def _grow(self) -> None:
        """More came than fits: what is left goes on in the full space."""
        space = bytearray(_SPACE)
        rest = self._end - self._start
        space[:rest] = self._view[self._start : self._end]
        self._space, self._view = space, memoryview(space)
        self._start, self._end = 0, rest

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
            payload = self._view[first : first + length]
            frames.append((length >= _LARGE and _parse_large(payload)) or _parse(payload))
            self._start = first + length
        return frames


def _parse_large(payload: memoryview) -> Frame | None:
    """A large DATA or DATA_ERR frame with its content as a view; None for any other."""
    width = _UINT_WIDTH.get(payload[1], 0)
    at = 2 + width
    kind, form = payload[at], payload[at + 1]
    if payload[0] != 0x93 or kind not in (Kind.DATA, Kind.DATA_ERR) or form not in _BIN_WIDTH:
        return None
    stream = int.from_bytes(payload[2:at]) if width else payload[1]
    size_end = at + 2 + _BIN_WIDTH[form]
    size = int.from_bytes(payload[at + 2 : size_end])
    if size != len(payload) - size_end or size > MAX_DATA or (not width and stream > 0x7F):
        return None
    return stream, _DATA_KINDS[kind], payload[size_end:]


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
