"""Two connections joined into one."""

from __future__ import annotations

import asyncio
import socket
import struct

BUFFER = 64 * 1024
"""Bytes that may wait in each direction of a connection before its sender is held back."""


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carries bytes one way until the sender is done, and then says so to the receiver; the other way goes on."""
    while data := await reader.read(BUFFER):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def reset(writer: asyncio.StreamWriter) -> None:
    """Breaks the connection off without the orderly end that would read as "that was all"."""
    endpoint: socket.socket | None = writer.get_extra_info("socket")
    if endpoint is not None and endpoint.fileno() >= 0 and endpoint.family != socket.AF_UNIX:
        # Lingering for zero seconds makes close() send a reset (socket(7), SO_LINGER).
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
