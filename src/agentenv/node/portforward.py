"""Publishes a port of a sandbox on the host's loopback: each connection there becomes one into the sandbox.

It needs no network in the sandbox: the way in is the agent's `dial`, so it works the same for an unprivileged user.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from agentenv.egress.streams import BUFFER, pump, reset
from agentenv.errors import AgentEnvError

LOOPBACK = "127.0.0.1"
DIALERS = 32
"""How many connections of one sandbox may be dialled at the same time."""

Dial = Callable[[int], socket.socket]
"""Connects to a port inside the sandbox; blocks, and raises `OSError` or `AgentEnvError` when nobody listens there."""


class PortForward:
    """The published ports of one sandbox."""

    def __init__(self) -> None:
        self._servers: dict[int, asyncio.Server] = {}
        self._connections: set[asyncio.Task[None]] = set()
        # Threads of its own: a dial into a paused sandbox waits, and must not take the threads that others wait for.
        self._dialers = ThreadPoolExecutor(DIALERS, thread_name_prefix="agentenv-dial")

    async def forward(self, port: int, dial: Dial) -> int:
        """Listens on a free port of 127.0.0.1, and returns it; the same one again for a `port` that is published already."""
        if port not in self._servers:

            async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._serve(reader, writer, partial(dial, port))

            self._servers[port] = await asyncio.start_server(connected, LOOPBACK, 0, limit=BUFFER, backlog=1024)
        host_port: int = self._servers[port].sockets[0].getsockname()[1]
        return host_port

    async def close(self) -> None:
        """Stops listening and breaks every connection off; idempotent."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        connections = set(self._connections)
        for connection in connections:
            connection.cancel()
        if connections:
            await asyncio.wait(connections)
        self._dialers.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dial: Callable[[], socket.socket]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writers = [writer]
        whole = False
        try:
            inner_reader, inner_writer = await asyncio.open_connection(sock=await self._dialled(dial), limit=BUFFER)
            writers.append(inner_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(pump(reader, inner_writer))
                both.create_task(pump(inner_reader, writer))
            whole = True
        except* (OSError, AgentEnvError):
            # Nobody listens inside, or one side broke off: the other side learns it as a reset.
            whole = False
        finally:
            for one in writers:
                one.close() if whole else reset(one)
            self._connections.discard(task)

    async def _dialled(self, dial: Callable[[], socket.socket]) -> socket.socket:
        """Dials in a thread. A thread cannot be stopped, so what it still brings after a cancellation is closed when it comes."""
        dialling = self._dialers.submit(dial)
        try:
            return await asyncio.wrap_future(dialling)
        except asyncio.CancelledError:
            dialling.add_done_callback(_discard)
            raise


def _discard(dialling: Future[socket.socket]) -> None:
    if not dialling.cancelled() and dialling.exception() is None:
        dialling.result().close()
