"""Refuses bodies that no route of the server itself has a use for, before they take its memory."""

from __future__ import annotations

import re

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentenv.server.faults import body_of

LARGEST = 4 << 20
"""Bytes: a Dockerfile of a MiB, escaped as JSON, and room for what is around it."""

STREAMED = re.compile(r"/templates/[^/]+/files/[^/]+/content|/dashboard/.*")
"""Paths of uploads, which go to the disk or into a sandbox as they come and have limits of their own."""


class BodyLimit:
    """Stands around the application's routes; requests that are for sandboxes do not come here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on; one whose body is too large is answered 413, if possible before it is read."""
        if scope["type"] != "http" or STREAMED.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit() and int(announced) > LARGEST:
            await JSONResponse(body_of(413, _sentence()), 413)(scope, receive, send)
            return
        taken = 0

        async def counting() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > LARGEST:
                raise HTTPException(413, _sentence())
            return message

        await self._app(scope, counting, send)


def _sentence() -> str:
    return f"the body is larger than the {LARGEST} bytes that are taken here; upload files into a sandbox, or as those of a build."
