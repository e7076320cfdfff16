"""A service: its methods by name, served as one ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from google.protobuf.message import Message
from starlette.types import Receive, Scope, Send

from agentenv.errors import AgentEnvError
from agentenv.server.envd.connect.codec import Codec, check_compression, codec_of, content_types, gunzip
from agentenv.server.envd.connect.codes import Code, ConnectError, end_of_stream
from agentenv.server.envd.connect.envelope import COMPRESSED, END_OF_STREAM, Envelope, Unsealer, seal
from agentenv.server.envd.connect.exchange import Exchange

M = TypeVar("M", bound=Message)
Explain = Callable[[AgentEnvError | OSError], Awaitable[ConnectError]]


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler learns of a call besides its message: the headers (names in lower case) and how many seconds the client grants."""

    headers: Mapping[str, str]
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Method:
    """One method; made by `unary`, `server_stream`, `client_stream`."""

    name: str
    shape: Literal["unary", "server_stream", "client_stream"]
    request: type[Message]
    handler: Callable[[Call, Any], Any]

    @property
    def streaming(self) -> bool:
        """Whether messages of this method travel in envelopes."""
        return self.shape != "unary"


def unary(name: str, request: type[M], handler: Callable[[Call, M], Awaitable[Message]]) -> Method:
    """A method with one message each way."""
    return Method(name, "unary", request, handler)


def server_stream(name: str, request: type[M], handler: Callable[[Call, M], AsyncIterator[Message]]) -> Method:
    """A method that one message starts and that answers with many. Its generator is closed when the client goes away."""
    return Method(name, "server_stream", request, handler)


def client_stream(name: str, request: type[M], handler: Callable[[Call, AsyncIterator[M]], Awaitable[Message]]) -> Method:
    """A method that takes many messages and answers with one."""
    return Method(name, "client_stream", request, handler)


class Service:
    """`name` is the full one, `package.Service`; its paths are `/name/Method`. `explain` says what a fault of a handler means."""

    def __init__(self, name: str, methods: Iterable[Method], explain: Explain) -> None:
        self.name = name
        self._methods = {method.name: method for method in methods}
        self._explain = explain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request whose path begins with `/name/`."""
        exchange = Exchange(scope, receive, send)
        method = self._methods.get(scope["path"].rpartition("/")[2])
        if scope["method"] != "POST":
            await exchange.answer(405, b"", "text/plain", ("allow", "POST"))
            return
        if method is None:
            await exchange.refuse(ConnectError(Code.UNIMPLEMENTED, f"{self.name} has no method for {scope['path']}"))
            return
        codec = codec_of(exchange.headers.get("content-type", ""), streaming=method.streaming)
        if codec is None:
            await exchange.answer(415, b"", "text/plain", ("accept-post", content_types(streaming=method.streaming)))
            return
        if method.streaming:
            await self._stream(method, codec, exchange)
        else:
            await self._unary(method, codec, exchange)

    async def _unary(self, method: Method, codec: Codec, exchange: Exchange) -> None:
        try:
            call = Call(exchange.headers, _timeout(exchange.headers))
            compressed = check_compression(exchange.headers.get("content-encoding", ""))
            body = await exchange.body()
            request = codec.decode(method.request, gunzip(body) if compressed else body)
            async with asyncio.timeout(call.timeout):
                message = await self._explained(method.handler(call, request))
        except TimeoutError:
            await exchange.refuse(_too_late())
        except ConnectError as error:
            await exchange.refuse(error)
        else:
            await exchange.answer(200, codec.encode(message), codec.content_type)

    async def _stream(self, method: Method, codec: Codec, exchange: Exchange) -> None:
        """Once the answer has begun an error is its last envelope; the status is 200 in any case."""
        error: ConnectError | None = None
        try:
            call = Call(exchange.headers, _timeout(exchange.headers))
            compressed = check_compression(exchange.headers.get("connect-content-encoding", ""))
            requests = _messages(exchange, method.request, codec, compressed)
            async with asyncio.timeout(call.timeout), aclosing(requests):
                if method.shape == "client_stream":
                    message = await self._explained(method.handler(call, requests))
                    await exchange.stream(codec.content_type, seal(codec.encode(message)))
                else:
                    await exchange.until_gone(self._answers(method, codec, call, await _only(requests), exchange))
        except TimeoutError:
            error = _too_late()
        except ConnectError as failure:
            error = failure
        if not exchange.gone:
            await exchange.stream(codec.content_type, seal(end_of_stream(error), END_OF_STREAM), last=True)

    async def _answers(self, method: Method, codec: Codec, call: Call, request: Message, exchange: Exchange) -> None:
        try:
            async with aclosing(method.handler(call, request)) as answers:
                async for message in answers:
                    await exchange.stream(codec.content_type, seal(codec.encode(message)))
        except (AgentEnvError, OSError) as error:
            raise await self._explain(error) from error

    async def _explained(self, answer: Awaitable[Message]) -> Message:
        try:
            return await answer
        except TimeoutError:
            raise
        except (AgentEnvError, OSError) as error:
            raise await self._explain(error) from error


async def _messages(exchange: Exchange, kind: type[M], codec: Codec, compressed: bool) -> AsyncGenerator[M]:
    """The messages of a request's body, as they come."""
    unsealer = Unsealer()
    async for piece in exchange.pieces():
        for envelope in unsealer.feed(piece):
            if not envelope.flags & END_OF_STREAM:
                yield codec.decode(kind, _opened(envelope, compressed))
    unsealer.finish()


def _opened(envelope: Envelope, compressed: bool) -> bytes:
    if not envelope.flags & COMPRESSED:
        return envelope.content
    if not compressed:
        raise ConnectError(Code.INVALID_ARGUMENT, "a message is compressed, but the header Connect-Content-Encoding does not say how")
    return gunzip(envelope.content)


async def _only(messages: AsyncIterator[M]) -> M:
    found = [message async for message in messages]
    if len(found) != 1:
        raise ConnectError(Code.INVALID_ARGUMENT, f"this method takes one message; {len(found)} came")
    return found[0]


def _timeout(headers: Mapping[str, str]) -> float | None:
    """The seconds of the header Connect-Timeout-Ms: at most ten digits, and 0 is at once. Raises `ConnectError`."""
    text = headers.get("connect-timeout-ms")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise ConnectError(Code.INVALID_ARGUMENT, f"the header Connect-Timeout-Ms is {text!r}; it takes at most ten digits")
    return int(text) / 1000


def _too_late() -> ConnectError:
    return ConnectError(Code.DEADLINE_EXCEEDED, "the time that the client granted is over")
