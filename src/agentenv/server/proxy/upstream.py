"""Connections to servers in a sandbox."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentenv.sandbox import AsyncSandbox

READ_SIZE = 256 << 10
"""Bytes of a response that are taken at a time, and wait at most."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One open connection to a port of a sandbox."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@asynccontextmanager
async def connected(sandbox: AsyncSandbox, port: int, *, tls: bool) -> AsyncIterator[Upstream]:
    """A fresh connection, closed at the end of the block. It belongs to one request of one generation of the sandbox and is never kept.

    Raises `ConnectionRefusedError` where nobody listens, other `OSError`s, `SandboxDied`, `InvalidState`.
    """
    sock = await sandbox.dial(port)
    try:
        sock.setblocking(False)
        context = unverified() if tls else None
        reader, writer = await asyncio.open_connection(
            sock=sock, limit=READ_SIZE, ssl=context, server_hostname="localhost" if tls else None
        )
    except BaseException:
        sock.close()
        raise
    try:
        yield Upstream(reader, writer)
    finally:
        writer.transport.abort()


def unverified() -> ssl.SSLContext:
    """The way to the sandbox is private as it is; its certificate is its own matter."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
