"""HTTP/1.1 through the proxy: both bodies flow at the same time, piece by piece, at the pace of the slower side."""

from __future__ import annotations

import asyncio

import h11
from starlette.types import Receive, Scope, Send

from agentenv.server.proxy.answers import Answer
from agentenv.server.proxy.headers import Headers, without_hop
from agentenv.server.proxy.upstream import READ_SIZE, Upstream

MAX_HEAD = 64 << 10
"""Bytes that the head of a response may have."""


class HttpRelay:
    """One request and its response. `begun`: the client has got the beginning of an answer."""

    def __init__(self, upstream: Upstream, receive: Receive, send: Send, added: Headers) -> None:
        self.begun = False
        self._added = added
        self._upstream = upstream
        self._receive = receive
        self._send = send
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)

    async def run(self, method: str, target: bytes, headers: Headers) -> None:
        """Passes the request on and the response back, until it is complete or the client hangs up.

        Raises `Answer` where the server in the sandbox gives no HTTP to pass on.
        """
        lines = [*headers, (b"connection", b"close")]
        try:
            await self._write(h11.Request(method=method, target=target, headers=lines))
        except h11.LocalProtocolError as error:
            raise Answer(400, f"the request cannot be passed on: {error}") from error
        up, down = asyncio.create_task(self._pass_request()), asyncio.create_task(self._pass_response())
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.wait({up, down})
        if not down.cancelled():
            down.result()

    async def _pass_request(self) -> None:
        """Returns when the client hangs up. A server that reads no further has its reasons, which its response tells."""
        reading, more = True, True
        while True:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                return
            if not reading or not more:
                continue
            more = event.get("more_body", False)
            try:
                if event.get("body"):
                    await self._write(h11.Data(data=event["body"]))
                if not more:
                    await self._write(h11.EndOfMessage())
            except (ConnectionError, h11.LocalProtocolError):
                reading = False

    async def _pass_response(self) -> None:
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Response):
                headers = without_hop((name, value) for name, value in event.headers) + self._added
                self.begun = True
                await self._send({"type": "http.response.start", "status": event.status_code, "headers": headers})
            elif isinstance(event, h11.Data):
                await self._send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                await self._send({"type": "http.response.body", "body": b""})
                return

    async def _next_event(self) -> object:
        """What the server in the sandbox sends next."""
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                self._protocol.receive_data(await self._upstream.reader.read(READ_SIZE))
        except (h11.RemoteProtocolError, ConnectionError) as error:
            raise Answer(502, f"what listens there gave no complete HTTP response: {error}") from error
        if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise Answer(502, "what listens there closed the connection without an HTTP response")
        return event

    async def _write(self, event: h11.Event) -> None:
        self._upstream.writer.write(self._protocol.send(event) or b"")
        await self._upstream.writer.drain()


async def relay_http(
    upstream: Upstream, scope: Scope, receive: Receive, send: Send, target: bytes, headers: Headers, added: Headers | None = None
) -> None:
    """Passes one request on and its response back, with the headers `added`.

    Raises `Answer` as long as nothing has been answered; a later fault breaks the answer off.
    """
    relay = HttpRelay(upstream, receive, send, added or [])
    chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
    try:
        await relay.run(scope["method"], target, [*headers, (b"transfer-encoding", b"chunked")] if chunked else headers)
    except Answer:
        if not relay.begun:
            raise
