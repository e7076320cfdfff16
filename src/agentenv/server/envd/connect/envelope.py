"""The envelopes in which streams carry their messages: one byte of flags, the length as u32 (big endian), the message."""

from __future__ import annotations

import struct
from typing import NamedTuple

from agentenv.server.envd.connect.codes import Code, ConnectError

COMPRESSED = 0b01
END_OF_STREAM = 0b10
MAX_MESSAGE = 64 << 20
"""Bytes of one message that a client may send, before and after decompression."""

_HEAD = struct.Struct(">BI")


class Envelope(NamedTuple):
    """One message of a stream as it travels."""

    flags: int
    content: bytes


def seal(content: bytes, flags: int = 0) -> bytes:
    """One message as the bytes of its envelope."""
    return _HEAD.pack(flags, len(content)) + content


class Unsealer:
    """Finds the envelopes in a stream of bytes that is cut anywhere."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Envelope]:
        """The envelopes that `data` completes, in order. Raises `ConnectError` for one that is too large or has unknown flags."""
        self._held += data
        envelopes = []
        start = 0
        while len(self._held) - start >= _HEAD.size:
            flags, length = _HEAD.unpack_from(self._held, start)
            if flags & ~(COMPRESSED | END_OF_STREAM):
                raise ConnectError(Code.INVALID_ARGUMENT, f"an envelope has the flags {flags:#x}; only 1 and 2 are known")
            if length > MAX_MESSAGE:
                raise ConnectError(Code.RESOURCE_EXHAUSTED, f"a message of {length} bytes is larger than the {MAX_MESSAGE} that are taken")
            end = start + _HEAD.size + length
            if end > len(self._held):
                break
            envelopes.append(Envelope(flags, bytes(self._held[start + _HEAD.size : end])))
            start = end
        del self._held[:start]
        return envelopes

    def finish(self) -> None:
        """Says that the stream is over. Raises `ConnectError` when that cuts an envelope."""
        if self._held:
            raise ConnectError(Code.INVALID_ARGUMENT, f"the stream ends {len(self._held)} bytes into an envelope")
