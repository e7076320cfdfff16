"""A real agent in the place of the one that the tiny guest has not: behind a unix socket that speaks as Firecracker's vsock does."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from agentenv.isolation.namespace import endpoint
from agentenv.isolation.vm import VSOCK_PORT

_CHUNK = 65536


@asynccontextmanager
async def agent_at(vsock: Path, sandbox: Path) -> AsyncIterator[None]:
    """Puts the agent of the namespace sandbox in the directory `sandbox` in the place of the guest's ports behind `vsock`."""
    listener = _listen(vsock)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == f"CONNECT {VSOCK_PORT}\n".encode()
        writer.write(b"OK 1073741824\n")
        agent_reader, agent_writer = await asyncio.open_unix_connection(sock=endpoint.connect(sandbox))
        await asyncio.gather(_copy(reader, agent_writer), _copy(agent_reader, writer))

    server = await asyncio.start_unix_server(serve, sock=listener)
    try:
        yield
    finally:
        server.close()


def _listen(path: Path) -> socket.socket:
    """In the place of the socket that is there, by a path that is short enough for an address."""
    path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    directory = os.open(path.parent, os.O_PATH)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
    return listener


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(_CHUNK):
            writer.write(piece)
            await writer.drain()
    writer.close()
