"""A client of Connect, small enough to see that it does what the protocol says."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx
from google.protobuf import json_format
from google.protobuf.message import Message

R = TypeVar("R", bound=Message)


class Failed(Exception):
    """A call that ended with an error of Connect."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(f"{code} ({status}): {message}")
        self.code = code
        self.status = status


def headers(content_type: str, *, user: str | None = None, timeout: float | None = None, **more: str) -> dict[str, str]:
    found = {
        "content-type": content_type,
        "connect-protocol-version": "1",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    if user is not None:
        found["authorization"] = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
    if timeout is not None:
        found["connect-timeout-ms"] = str(int(timeout * 1000))
    return found


def pack(message: Message, codec: str) -> bytes:
    return message.SerializeToString() if codec == "proto" else json_format.MessageToJson(message).encode()


def unpack(content: bytes, kind: type[R], codec: str) -> R:
    return kind.FromString(content) if codec == "proto" else json_format.Parse(content, kind())


async def unary(
    client: httpx.AsyncClient, path: str, request: Message, answer: type[R], *, codec: str = "json", user: str | None = None
) -> R:
    """One call; raises `Failed`."""
    response = await client.post(f"/{path}", content=pack(request, codec), headers=headers(f"application/{codec}", user=user))
    if response.status_code != 200:
        error = response.json()
        raise Failed(error["code"], error["message"], response.status_code)
    assert response.headers["content-type"] == f"application/{codec}"
    return unpack(response.content, answer, codec)


@asynccontextmanager
async def streamed(
    client: httpx.AsyncClient,
    path: str,
    requests: list[Message],
    answer: type[R],
    *,
    codec: str = "json",
    user: str | None = None,
    timeout: float | None = None,
    **more: str,
) -> AsyncIterator[AsyncIterator[R]]:
    """The answers of a call as they come; leaving the block hangs up. Iterating raises `Failed` at an error."""
    body = b"".join(struct.pack(">BI", 0, len(content)) + content for content in (pack(request, codec) for request in requests))
    sent = headers(f"application/connect+{codec}", user=user, timeout=timeout, **more)
    async with client.stream("POST", f"/{path}", content=body, headers=sent) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == f"application/connect+{codec}"
        yield _messages(response, answer, codec)


async def _messages(response: httpx.Response, answer: type[R], codec: str) -> AsyncIterator[R]:
    held = b""
    async for piece in response.aiter_raw():
        held += piece
        while len(held) >= 5:
            flags, length = struct.unpack(">BI", held[:5])
            if len(held) < 5 + length:
                break
            content, held = held[5 : 5 + length], held[5 + length :]
            if flags & 2:
                assert not held, "bytes follow the end of the stream"
                if error := json.loads(content).get("error"):
                    raise Failed(error["code"], error["message"], 200)
                return
            yield unpack(content, answer, codec)
    raise AssertionError("the stream has no end")
