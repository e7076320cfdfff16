"""gzip on the way of files: which encoding a client takes, and packing and unpacking piece by piece."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

from agentenv.server.envd.connect import Code, ConnectError

_GZIP_WINDOW = 31
_PIECE = 1 << 20
_IN_THREAD = 64 << 10
"""Bytes from which on a piece is worth a thread of its own."""


def wants_gzip(header: str) -> bool:
    """Whether a client asks for gzip by its Accept-Encoding (RFC 9110, 12.5.3): it names nothing else, or takes nothing plain.

    HTTP libraries name all that they can unpack in every request; packing costs more than it saves on the way to a neighbour, so that such
    a list is no wish.
    """
    weights = _weights(header)
    others = {name: weight for name, weight in weights.items() if name != "gzip" and weight > 0}
    return weights.get("gzip", 0.0) > 0 and (not others or not takes_plain(header))


def takes_plain(header: str) -> bool:
    """Whether an Accept-Encoding allows plain bytes, which it does unless it says otherwise."""
    weights = _weights(header)
    return weights.get("identity", weights.get("*", 1.0)) > 0


def _weights(header: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for item in filter(None, (item.strip() for item in header.lower().split(","))):
        name, _, parameters = item.partition(";")
        weights[name.strip()] = _weight(parameters)
    return weights


def _weight(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 1.0
    return 1.0


async def packed(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces gzipped."""
    packer = zlib.compressobj(wbits=_GZIP_WINDOW)
    async for piece in pieces:
        small = await asyncio.to_thread(packer.compress, piece) if len(piece) >= _IN_THREAD else packer.compress(piece)
        if small:
            yield small
    yield packer.flush()


async def unpacked(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What gzipped pieces hold, never more than a megabyte at a time. Raises `ConnectError` for what is no gzip, or is cut off."""
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    begun = False
    try:
        async for piece in pieces:
            rest = piece
            while rest:
                if unpacker.eof:
                    unpacker = zlib.decompressobj(_GZIP_WINDOW)
                begun = True
                if plain := unpacker.decompress(rest, _PIECE):
                    yield plain
                rest = unpacker.unconsumed_tail or unpacker.unused_data
    except zlib.error as error:
        raise ConnectError(Code.INVALID_ARGUMENT, f"the body is said to be gzipped, but is not: {error}") from error
    if begun and not unpacker.eof:
        raise ConnectError(Code.INVALID_ARGUMENT, "the gzipped body is cut off")
