"""WebSockets through the proxy, message by message."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from agentenv.sandbox import AsyncSandbox
from agentenv.server.proxy.answers import Answer
from agentenv.server.proxy.headers import Headers
from agentenv.server.proxy.upstream import unverified

MAX_MESSAGE = 16 << 20
"""Bytes of one message in either direction."""

GONE = 1001
"""How a WebSocket is closed whose other end is gone (RFC 6455, 7.4.1)."""

_HANDSHAKE = (
    b"host",
    b"sec-websocket-key",
    b"sec-websocket-version",
    b"sec-websocket-extensions",
    b"sec-websocket-protocol",
    b"content-length",
)


async def relay_websocket(
    sandbox: AsyncSandbox, port: int, scope: Scope, receive: Receive, send: Send, target: str, headers: Headers, *, tls: bool
) -> None:
    """Connects to the server in the sandbox as the client wished, and passes messages both ways until one side closes.

    Raises `Answer` where there is no WebSocket, `OSError` where nobody listens, and what `AsyncSandbox.dial` raises.
    """
    await receive()
    host = next((value.decode("latin-1") for name, value in headers if name == b"host"), "localhost")
    sock = await sandbox.dial(port)
    sock.setblocking(False)
    try:
        far = await connect(
            f"{'wss' if tls else 'ws'}://{host}{target}",
            sock=sock,
            ssl=unverified() if tls else None,
            server_hostname="localhost" if tls else None,
            proxy=None,
            compression=None,
            ping_interval=None,
            max_size=MAX_MESSAGE,
            user_agent_header=None,
            subprotocols=[Subprotocol(name) for name in scope.get("subprotocols", ())] or None,
            additional_headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name not in _HANDSHAKE],
        )
    except InvalidStatus as error:
        raise Answer(error.response.status_code, "what listens there takes no WebSocket here", port=port) from error
    except (InvalidHandshake, EOFError, TimeoutError) as error:
        raise Answer(502, f"what listens there speaks no WebSocket: {error}", port=port) from error
    except BaseException:
        sock.close()
        raise
    async with far:
        await send({"type": "websocket.accept", "subprotocol": far.subprotocol})
        await _pass_both(far, receive, send)


async def _pass_both(far: ClientConnection, receive: Receive, send: Send) -> None:
    inward, outward = asyncio.create_task(_inward(far, receive)), asyncio.create_task(_outward(far, send))
    try:
        await asyncio.wait({inward, outward}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (inward, outward):
            task.cancel()
        await asyncio.wait({inward, outward})


async def _inward(far: ClientConnection, receive: Receive) -> None:
    """Returns when the client has closed, or the far end takes no more."""
    while (event := await receive())["type"] == "websocket.receive":
        text = event.get("text")
        try:
            await far.send(text if text is not None else event["bytes"])
        except ConnectionClosed:
            return
    await far.close(_sendable(event.get("code")), event.get("reason") or "")


async def _outward(far: ClientConnection, send: Send) -> None:
    try:
        async for message in far:
            await send({"type": "websocket.send", **({"text": message} if isinstance(message, str) else {"bytes": message})})
    except ConnectionClosed as closed:
        code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (GONE, "the other end is gone")
    else:
        code, reason = far.close_code or 1000, far.close_reason or ""
    await send({"type": "websocket.close", "code": _sendable(code), "reason": reason})


def _sendable(code: int | None) -> int:
    """A code that may be sent: 1005, 1006 and 1015 only say that none came."""
    return code if code is not None and code not in (1005, 1006, 1015) else 1000
