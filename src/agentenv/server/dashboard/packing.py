"""The scripts and styles of the pages, compressed once and then served from memory: each page needs a dozen of them."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PREFIX = "/_nicegui/"
CHANGING = ("/client/", "/dynamic_resources/")
"""Parts of paths below it that are no files."""
SMALLEST = 500
"""Bytes from which on compressing is worth it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent for one path."""

    headers: list[tuple[bytes, bytes]]
    body: bytes


class Packed:
    """ASGI middleware around NiceGUI. Its files never change while it runs; there are a few dozen."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._known: dict[str, Answer] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or WebSocket."""
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""
        fixed = path.startswith(PREFIX) and scope["method"] == "GET" and not any(part in path for part in CHANGING)
        if not fixed or "gzip" not in Headers(scope=scope).get("accept-encoding", ""):
            await self._app(scope, receive, send)
            return
        answer = self._known.get(path)
        if answer is None:
            status, answer = await self._fetch(scope, receive)
            if status != 200:
                await _send(send, status, answer)
                return
            answer = await asyncio.to_thread(_packed, answer)
            self._known[path] = answer
        await _send(send, 200, answer)

    async def _fetch(self, scope: Scope, receive: Receive) -> tuple[int, Answer]:
        status, headers, pieces = 500, [], []

        async def keep(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message["headers"])
            elif message["type"] == "http.response.body":
                pieces.append(message.get("body", b""))

        # Conditions and ranges are of what one browser has; all are to get the whole.
        left_out = (b"if-none-match", b"if-modified-since", b"range", b"if-range")
        plain = [(name, value) for name, value in scope["headers"] if name not in left_out]
        await self._app({**scope, "headers": plain, "extensions": {}}, receive, keep)
        return status, Answer(headers, b"".join(pieces))


def _packed(answer: Answer) -> Answer:
    if len(answer.body) < SMALLEST:
        return answer
    body = gzip.compress(answer.body, 6)
    kept = [(name, value) for name, value in answer.headers if name not in (b"content-length", b"content-encoding", b"accept-ranges")]
    return Answer(
        [*kept, (b"content-length", str(len(body)).encode()), (b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding")], body
    )


async def _send(send: Send, status: int, answer: Answer) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(answer.headers)})
    await send({"type": "http.response.body", "body": answer.body})
