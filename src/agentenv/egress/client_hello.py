"""The server's name in the first message of a TLS connection (RFC 8446 section 4.1.2, RFC 6066 section 3)."""

from __future__ import annotations

import re

HANDSHAKE = 22
"""The first byte of a TLS connection: the content type of its first record."""

LONGEST_HELLO = 1 << 16
_CLIENT_HELLO = 1
_SERVER_NAME = 0
_HOST_NAME = 0
_LONGEST_RECORD = (1 << 14) + 256
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)+")


class Malformed(ValueError):
    """What came is no beginning of that protocol."""


def server_name(data: bytes) -> str | None:
    """The host name (lower case) that the ClientHello at the beginning of `data` asks for; "" where it names none.

    None while more bytes are needed. Raises `Malformed`, also for a hello of more than 64 KiB.
    """
    message = _handshake(data)
    return None if message is None else _named(message)


def _handshake(data: bytes) -> bytes | None:
    """The body of the first handshake message, put together out of as many records as it takes."""
    message = b""
    while True:
        if len(message) >= 4:
            if message[0] != _CLIENT_HELLO:
                raise Malformed("the first handshake message is no ClientHello")
            length = int.from_bytes(message[1:4], "big")
            if length > LONGEST_HELLO:
                raise Malformed(f"a ClientHello of {length} bytes")
            if len(message) >= 4 + length:
                return message[4 : 4 + length]
        if data[:1] not in (b"", bytes([HANDSHAKE])):
            raise Malformed("no handshake record")
        if len(data) < 5:
            return None
        size = int.from_bytes(data[3:5], "big")
        if data[1] != 3 or not 0 < size <= _LONGEST_RECORD:
            raise Malformed("no TLS record")
        if len(data) < 5 + size:
            return None
        message += data[5 : 5 + size]
        data = data[5 + size :]


class _Reader:
    """Reads vectors that begin with their length."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def take(self, count: int) -> bytes:
        if len(self.rest) < count:
            raise Malformed("it ends before its fields do")
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> _Reader:
        return _Reader(self.take(self.number(size)))


def _named(body: bytes) -> str:
    hello = _Reader(body)
    hello.take(2 + 32)  # legacy_version, random
    for size in (1, 2, 1):  # legacy_session_id, cipher_suites, legacy_compression_methods
        hello.vector(size)
    if not hello.rest:
        return ""
    extensions = hello.vector(2)
    names: list[str] = []
    while extensions.rest:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind == _SERVER_NAME:
            names += _host_names(content)
    if len(names) > 1:
        raise Malformed("it names several servers")
    return names[0] if names else ""


def _host_names(extension: _Reader) -> list[str]:
    names = []
    entries = extension.vector(2)
    while entries.rest:
        kind, name = entries.number(1), entries.vector(2).rest
        if kind == _HOST_NAME:
            names.append(host_name(name))
    return names


def host_name(raw: bytes) -> str:
    """A host's name as it travels, in lower case, without a final dot; "" for an IPv4 address. Raises `Malformed` for what is neither."""
    text = raw.decode("ascii", errors="replace").lower().removesuffix(".")
    if re.fullmatch(r"[0-9]+(\.[0-9]+){3}", text):
        return ""
    if len(text) > 253 or not _NAME.fullmatch(text) or text.rpartition(".")[2].isdigit():
        raise Malformed(f"{text[:80]!r} is no name of a host")
    return text
