"""One HTTP request and its answer, over ASGI's `receive` and `send`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine

from starlette.types import Receive, Scope, Send

from agentenv.server.envd.connect.codes import HTTP_STATUS, Code, ConnectError
from agentenv.server.envd.connect.envelope import MAX_MESSAGE


class Exchange:
    """What a call needs of HTTP. `gone`: the client has hung up, so that nothing more need be sent; `begun`: the answer's head is sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        self.gone = False
        self._receive = receive
        self._send = send
        self.begun = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """The request's body as it comes. Raises `ConnectError` when the client hangs up before its end."""
        more = True
        while more:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                self.gone = True
                raise ConnectError(Code.CANCELED, "the client hung up")
            more = event.get("more_body", False)
            if event.get("body"):
                yield event["body"]

    async def body(self) -> bytes:
        """The whole body of a request. Raises `ConnectError` when it is larger than a message may be."""
        pieces, size = [], 0
        async for piece in self.pieces():
            size += len(piece)
            if size > MAX_MESSAGE:
                raise ConnectError(Code.RESOURCE_EXHAUSTED, f"the request is larger than the {MAX_MESSAGE} bytes that are taken")
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def answer(self, status: int, body: bytes, content_type: str, *headers: tuple[str, str]) -> None:
        """Sends a whole answer."""
        await self.begin(status, ("content-type", content_type), ("content-length", str(len(body))), *headers)
        await self.send(body, last=True)

    async def begin(self, status: int, *headers: tuple[str, str]) -> None:
        """Sends the head of an answer."""
        self.begun = True
        lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": lines})

    async def send(self, content: bytes, *, last: bool = False) -> None:
        """Sends a piece of an answer's body."""
        await self._send({"type": "http.response.body", "body": content, "more_body": not last})

    async def refuse(self, error: ConnectError) -> None:
        """Sends an error as the answer of a unary call."""
        if not self.gone and not self.begun:
            await self.answer(HTTP_STATUS[error.code], error.body(), "application/json")

    async def stream(self, content_type: str, content: bytes, *, last: bool = False) -> None:
        """Sends a piece of a streamed answer, and before the first its head."""
        if not self.begun:
            await self.begin(200, ("content-type", content_type), ("cache-control", "no-cache"))
        await self.send(content, last=last)

    async def until_gone(self, work: Coroutine[None, None, None]) -> None:
        """Does `work`, which is cancelled when the client hangs up first."""
        doing = asyncio.create_task(work)
        hung_up = asyncio.create_task(self._hung_up())
        try:
            await asyncio.wait({doing, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            self.gone = not doing.done()
        finally:
            for task in (doing, hung_up):
                task.cancel()
            await asyncio.wait({doing, hung_up})
        if not doing.cancelled():
            doing.result()

    async def _hung_up(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
