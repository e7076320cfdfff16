"""The way through the server to a sandbox's agent: a connection that stops being HTTP and carries the agent's frames from then on.

ASGI knows no switch to a protocol of one's own, so this takes place one layer below: the server's HTTP protocol hands such a connection
over with its transport, as it does with those that become WebSockets.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

from starlette.datastructures import Headers
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentenv.errors import AgentEnvError, NotFound
from agentenv.sandbox.remote.wire import PREFIX, UPGRADE
from agentenv.server.access import Role
from agentenv.server.faults import status_of
from agentenv.server.services import Services

BUFFER = 256 << 10
"""Bytes that may wait for either side before the other is held back."""

_SWITCH = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n".encode()


def http_protocol(services: Services) -> type[HttpToolsProtocol]:
    """The protocol for uvicorn's `http` that also knows tunnels to the sandboxes of `services`."""

    class SwitchingProtocol(HttpToolsProtocol):
        """HTTP/1.1, from which a connection may switch to the agent's protocol."""

        def on_body(self, body: bytes) -> None:
            """Hands a piece of a body on as it came, which uvicorn would copy twice."""
            if not self.cycle.body:
                self.cycle.body = body  # type: ignore[assignment]  # which is only read, as bytes
                body = b""
            super().on_body(body)

        def _should_upgrade(self) -> bool:
            return self._wants_agent() or super()._should_upgrade()

        def handle_websocket_upgrade(self) -> None:
            if not self._wants_agent():
                super().handle_websocket_upgrade()
                return
            self.connections.discard(self)
            tunnel = Tunnel(services, self.url.decode("ascii"), Headers(raw=self.headers))
            transport = self.transport
            transport.set_protocol(tunnel)
            tunnel.connection_made(transport)

        def _wants_agent(self) -> bool:
            return self._get_upgrade() == UPGRADE.encode()

    return SwitchingProtocol


class _End(asyncio.Protocol):
    """One end of a tunnel: what comes in goes to the other one, no faster than that takes it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=BUFFER)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class Tunnel(_End):
    """The client's end. Once it is made it looks who asks for which sandbox, and connects to its agent or says why not."""

    def __init__(self, services: Services, path: str, headers: Headers) -> None:
        super().__init__()
        self._services = services
        self._path = path
        self._headers = headers
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # A client sends frames only once it was told that it may.
        cast(asyncio.Transport, transport).pause_reading()
        self._opening = asyncio.create_task(self._open())

    def connection_lost(self, error: Exception | None) -> None:
        if self._opening is not None:
            self._opening.cancel()
        super().connection_lost(error)

    async def _open(self) -> None:
        try:
            identifier, dial = await self._agent()
            agent = await asyncio.to_thread(dial)
        except AgentEnvError as error:
            self._refuse(error)
            return
        agent.setblocking(False)
        with self._services.fleet.in_use(identifier):
            far = _AgentEnd(self)
            await asyncio.get_running_loop().create_connection(lambda: far, sock=agent)
            if self.transport is None:
                return
            self.other = far
            self.transport.write(_SWITCH)
            self.transport.resume_reading()
            await far.lost.wait()

    async def _agent(self) -> tuple[str, Callable[[], socket.socket]]:
        principal = self._services.access.authenticate(self._headers)
        principal.require(Role.USER)
        identifier = self._path.removeprefix(f"{PREFIX}/sandboxes/").removesuffix("/agent")
        if self._path != f"{PREFIX}/sandboxes/{identifier}/agent":
            raise NotFound(f"{self._path} leads to no agent.")
        fleet = self._services.fleet
        fleet.owned(principal.tenant, identifier)
        handle = await fleet.running(identifier)
        return identifier, fleet.node.get(handle.id).machine.dial

    def _refuse(self, error: AgentEnvError) -> None:
        if self.transport is None:
            return
        status = HTTPStatus(status_of(error))
        text = error.message.encode()
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Connection: close",
            "Content-Type: text/plain",
            f"Content-Length: {len(text)}",
        )
        head = "\r\n".join((*lines, "", ""))
        self.transport.write(head.encode() + text)
        self.transport.close()


class _AgentEnd(_End):
    """The agent's end; `lost` is set when it is gone."""

    def __init__(self, client: Tunnel) -> None:
        super().__init__()
        self.other = client
        self.lost = asyncio.Event()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        super().connection_lost(error)
