"""Frames of the step protocol: what travels between an environment in its sandbox and the host (docs/step-protocol.md).

Everything is little endian. A frame is a header of eight bytes and a body:

    length    u32   bytes of the body
    kind      u8    one of `Kind`
    flags     u8    TERMINATED | TRUNCATED in a TRANSITION, else 0
    reserved  u16   0
"""

from __future__ import annotations

import socket
import struct
from enum import IntEnum
from typing import Final

PROTOCOL: Final = 1
MAX_BODY: Final = 64 << 20
"""The longest body either side accepts, in bytes."""

HEADER: Final = struct.Struct("<IBBH")
OUTCOME: Final = struct.Struct("<dII")
"""What follows the header of a TRANSITION: reward f64, bytes of the info's JSON u32, reserved u32; then the observation, then the info."""

OBSERVATION_OFFSET: Final = HEADER.size + OUTCOME.size
REWARD: Final = struct.Struct("<d")
TRANSITION_HEAD: Final = struct.Struct("<IBBHdII")
PLAIN_RESET: Final = b'{"seed":null,"options":null}'
"""The body of a RESET that wishes for nothing in particular, as most do: both sides know it without reading or writing JSON."""

TERMINATED: Final = 1
TRUNCATED: Final = 2


class Kind(IntEnum):
    """Requests (host to environment) are below 64, answers from 64 on."""

    RESET = 1
    STEP = 2
    SAVE = 3
    LOAD = 4
    RENDER = 5
    CALL = 6
    SET = 7
    CLOSE = 8
    HELLO = 64
    TRANSITION = 65
    VALUE = 66
    STATE = 67
    ERROR = 68


class WireError(ValueError):
    """The other side sent what the step protocol does not allow."""


class EndOfStream(ConnectionError):
    """The other side closed the stream."""


def frame(kind: Kind, body: bytes = b"") -> bytes:
    """One complete frame. Raises `WireError` when the body is longer than `MAX_BODY`."""
    if len(body) > MAX_BODY:
        raise WireError(f"a {kind.name} of {len(body)} bytes is longer than the {MAX_BODY} that the step protocol allows")
    return HEADER.pack(len(body), kind, 0, 0) + body


def parse_header(header: bytes | bytearray | memoryview) -> tuple[int, Kind, int]:
    """(length, kind, flags) of a header. Raises `WireError` for one that the protocol does not know."""
    length, number, flags, reserved = HEADER.unpack_from(header)
    if length > MAX_BODY:
        raise WireError(f"a frame announces {length} bytes; at most {MAX_BODY} are allowed")
    try:
        kind = Kind(number)
    except ValueError:
        raise WireError(f"a frame has the unknown kind {number}") from None
    allowed = TERMINATED | TRUNCATED if kind is Kind.TRANSITION else 0
    if reserved or flags & ~allowed:
        raise WireError(f"a {kind.name} frame sets bits that must be zero (flags {flags}, reserved {reserved})")
    return length, kind, flags


def receive_exactly(stream: socket.socket, view: memoryview) -> None:
    """Fills `view`. Raises `EndOfStream` when the stream ends before."""
    filled = 0
    while filled < len(view):
        count = stream.recv_into(view[filled:])
        if count == 0:
            raise EndOfStream(f"the stream ended after {filled} of {len(view)} bytes")
        filled += count


def receive(stream: socket.socket) -> tuple[Kind, int, bytearray]:
    """Reads one frame: (kind, flags, body)."""
    header = bytearray(HEADER.size)
    receive_exactly(stream, memoryview(header))
    length, kind, flags = parse_header(header)
    body = bytearray(length)
    receive_exactly(stream, memoryview(body))
    return kind, flags, body


def split_transition(body: memoryview, observation_size: int | None) -> tuple[float, memoryview, memoryview]:
    """(reward, observation, info) of a TRANSITION's body; `observation_size` is None where observations vary in size.

    Raises `WireError` when the parts do not add up to the body.
    """
    if len(body) < OUTCOME.size:
        raise WireError(f"a TRANSITION of {len(body)} bytes is shorter than its head of {OUTCOME.size}")
    reward, info_size, reserved = OUTCOME.unpack_from(body)
    size = len(body) - OUTCOME.size - info_size
    if reserved or size < 0 or (observation_size is not None and size != observation_size):
        wanted = "any number of" if observation_size is None else str(observation_size)
        raise WireError(f"a TRANSITION of {len(body)} bytes cannot hold {wanted} bytes of observation and {info_size} of info")
    end = OUTCOME.size + size
    return reward, body[OUTCOME.size : end], body[end:]
