"""A server that does nothing but HTTP: it throws away what it is sent, and sends zeros. `python -m agentenv.benchmarks.discarding`."""

from __future__ import annotations

import asyncio
import socket
import sys
from urllib.parse import parse_qs

import uvicorn
from starlette.types import Receive, Scope, Send

_PIECE = bytes(256 << 10)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Takes a body and answers nothing, or answers GET with `size` bytes."""
    left = int(parse_qs(scope["query_string"].decode())["size"][0]) if scope["method"] == "GET" else 0
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(left).encode())]})
    while left > 0:
        piece = _PIECE[:left]
        left -= len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def serve() -> None:
    """Serves until SIGTERM, on a free port of loopback, and says where."""
    # As asyncio's own TCP sockets are, so that small answers go at once.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/\n")
        sys.stdout.flush()
        await uvicorn.Server(uvicorn.Config(application, http="httptools", lifespan="off", log_config=None)).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(serve())
