"""The Connect protocol: envelopes and codecs as such, and a small service driven as an ASGI application."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.errors import NotFound
from agentenv.server.envd.connect import Call, Code, ConnectError, Service, client_stream, codec, server_stream, unary
from agentenv.server.envd.connect.codec import Codec, codec_of, gunzip
from agentenv.server.envd.connect.envelope import MAX_MESSAGE, Envelope, Unsealer, seal
from agentenv.server.envd.wire.process_pb2 import ProcessConfig, ProcessInput

T = TypeVar("T")

MESSAGES = st.builds(
    ProcessConfig,
    cmd=st.text(),
    args=st.lists(st.text(), max_size=4),
    envs=st.dictionaries(st.text(), st.text(), max_size=3),
    cwd=st.none() | st.text(),
)
CODECS = [Codec(name, streaming) for name in ("json", "proto") for streaming in (False, True)]  # type: ignore[arg-type]


def attempt(function: Callable[..., T], *arguments: object) -> T | ConnectError:
    """What a function gives, or how it refuses."""
    try:
        return function(*arguments)
    except ConnectError as error:
        return error


def all_envelopes(stream: bytes) -> list[Envelope]:
    unsealer = Unsealer()
    found = unsealer.feed(stream)
    unsealer.finish()
    return found


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=300))), st.lists(st.integers(0, 2000)))
def test_envelopes_are_found_however_the_stream_is_cut(envelopes: list[tuple[int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(seal(content, flags) for flags, content in envelopes)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    unsealer = Unsealer()
    found = [envelope for start, end in itertools.pairwise(edges) for envelope in unsealer.feed(stream[start:end])]
    unsealer.finish()
    assert found == [Envelope(*envelope) for envelope in envelopes]


@given(st.binary(max_size=64))
def test_no_bytes_break_the_finder(noise: bytes) -> None:
    found = attempt(all_envelopes, noise)
    if isinstance(found, ConnectError):
        assert found.code in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)
    else:
        assert b"".join(seal(content, flags) for flags, content in found) == noise


def test_a_message_beyond_the_limit_is_refused_by_its_length() -> None:
    with pytest.raises(ConnectError) as refused:
        Unsealer().feed(b"\0" + (MAX_MESSAGE + 1).to_bytes(4, "big"))
    assert refused.value.code == Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("written", CODECS, ids=lambda written: written.content_type)
@settings(max_examples=30)
@given(message=MESSAGES)
def test_messages_come_back(written: Codec, message: ProcessConfig) -> None:
    assert written.decode(ProcessConfig, written.encode(message)) == message


@pytest.mark.parametrize("written", CODECS, ids=lambda written: written.content_type)
@settings(max_examples=30)
@given(noise=st.binary(max_size=64))
def test_no_bytes_break_a_codec(written: Codec, noise: bytes) -> None:
    found = attempt(written.decode, ProcessInput, noise)
    assert isinstance(found, ProcessInput) or found.code == Code.INVALID_ARGUMENT


def test_unknown_fields_are_left_out() -> None:
    assert CODECS[0].decode(ProcessConfig, b'{"cmd": "x", "new": {"field": 1}}') == ProcessConfig(cmd="x")
    assert CODECS[0].decode(ProcessConfig, b"") == ProcessConfig()


@pytest.mark.parametrize(
    ("content_type", "streaming", "known"),
    [
        ("application/json", False, True),
        ("Application/JSON; charset=utf-8", False, True),
        ("application/connect+proto", True, True),
        ("application/connect+json", False, False),
        ("application/json", True, False),
        ("application/json; charset=latin-1", False, False),
        ("application/grpc", True, False),
        ("", False, False),
    ],
)
def test_content_types(content_type: str, streaming: bool, known: bool) -> None:
    assert (codec_of(content_type, streaming=streaming) is not None) == known


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_MESSAGE", 10_000)
    assert gunzip(gzip.compress(bytes(10_000))) == bytes(10_000)
    for content, code in ((gzip.compress(bytes(10_001)), Code.RESOURCE_EXHAUSTED), (b"no gzip", Code.INVALID_ARGUMENT)):
        with pytest.raises(ConnectError) as refused:
            gunzip(content)
        assert refused.value.code == code


class Client:
    """One ASGI request whose answer is collected; `hang_up` is the client going away."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces) or [b""]
        self.hang_up = asyncio.Event()
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.complete = False

    async def receive(self) -> dict[str, Any]:
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self.hang_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Any) -> None:
        if event["type"] == "http.response.start":
            assert self.status == 0
            self.status, self.headers = event["status"], dict(event["headers"])
        else:
            self.body += event["body"]
            self.complete = not event.get("more_body", False)

    async def ask(self, service: Service, path: str, content_type: str, /, method: str = "POST", **headers: str) -> None:
        lines = [
            (b"content-type", content_type.encode()),
            *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
        ]
        await service({"type": "http", "method": method, "path": path, "headers": lines}, self.receive, self.send)

    @property
    def envelopes(self) -> list[Envelope]:
        return all_envelopes(self.body)


class Echo:
    """A service that answers with what it got, and in whose handlers a test can see how they ended."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.waiting = asyncio.Event()

    async def echo(self, call: Call, request: ProcessConfig) -> ProcessConfig:
        if request.cmd == "missing":
            raise NotFound("it is missing")
        if request.cmd == "wait":
            await asyncio.Event().wait()
        return request

    async def split(self, call: Call, request: ProcessConfig) -> AsyncIterator[ProcessConfig]:
        try:
            for word in request.args:
                if word == "fail":
                    raise NotFound("it is missing")
                if word == "wait":
                    self.waiting.set()
                    await asyncio.Event().wait()
                yield ProcessConfig(cmd=word)
        finally:
            self.closed.set()

    async def join(self, call: Call, requests: AsyncIterator[ProcessConfig]) -> ProcessConfig:
        return ProcessConfig(args=[request.cmd async for request in requests])

    def service(self) -> Service:
        async def explain(error: Exception) -> ConnectError:
            return ConnectError(Code.NOT_FOUND, str(error))

        methods = (unary("Echo", ProcessConfig, self.echo), server_stream("Split", ProcessConfig, self.split))
        return Service("test.Echo", (*methods, client_stream("Join", ProcessConfig, self.join)), explain)


def packed(*words: str) -> bytes:
    return json.dumps({"args": words}).encode()


async def test_a_unary_call() -> None:
    client = Client(b'{"cm', b'd": "hello"}')
    await client.ask(Echo().service(), "/test.Echo/Echo", "application/json")
    assert (client.status, json.loads(client.body), client.complete) == (200, {"cmd": "hello"}, True)
    zipped = Client(gzip.compress(b'{"cmd": "zipped"}'))
    await zipped.ask(Echo().service(), "/test.Echo/Echo", "application/json", content_encoding="gzip")
    assert json.loads(zipped.body) == {"cmd": "zipped"}


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b'{"cmd": "missing"}', {}, 404, "not_found"),
        (b'{"cmd": "wait"}', {"connect_timeout_ms": "20"}, 504, "deadline_exceeded"),
        (b'{"cmd": 1}', {}, 400, "invalid_argument"),
        (b"{}", {"connect_timeout_ms": "soon"}, 400, "invalid_argument"),
        (b"{}", {"connect_timeout_ms": "12345678901"}, 400, "invalid_argument"),
        (b"{}", {"content_encoding": "br"}, 501, "unimplemented"),
        (b"{}", {"content_encoding": "gzip"}, 400, "invalid_argument"),
    ],
)
async def test_unary_errors(body: bytes, headers: dict[str, str], status: int, code: str) -> None:
    client = Client(body)
    await client.ask(Echo().service(), "/test.Echo/Echo", "application/json", **headers)
    assert (client.status, json.loads(client.body)["code"]) == (status, code)
    assert client.headers[b"content-type"] == b"application/json"


async def test_requests_that_are_no_calls() -> None:
    for method, path, content_type, status in (
        ("GET", "/test.Echo/Echo", "application/json", 405),
        ("POST", "/test.Echo/Nothing", "application/json", 501),
        ("POST", "/test.Echo/Echo", "text/plain", 415),
        ("POST", "/test.Echo/Split", "application/json", 415),
    ):
        client = Client()
        await client.ask(Echo().service(), path, content_type, method=method)
        assert (client.status, client.complete) == (status, True)


async def test_a_stream_of_answers() -> None:
    client = Client(seal(gzip.compress(packed("a", "b")), 1))
    await client.ask(Echo().service(), "/test.Echo/Split", "application/connect+json", connect_content_encoding="gzip")
    assert [json.loads(envelope.content) for envelope in client.envelopes] == [{"cmd": "a"}, {"cmd": "b"}, {}]
    assert [envelope.flags for envelope in client.envelopes] == [0, 0, 2]


@pytest.mark.parametrize(
    ("body", "headers", "answers", "code"),
    [
        (seal(packed("a", "fail")), {}, 1, "not_found"),
        (seal(packed("a", "wait")), {"connect_timeout_ms": "50"}, 1, "deadline_exceeded"),
        (seal(packed()) * 2, {}, 0, "invalid_argument"),
        (seal(packed())[:-1], {}, 0, "invalid_argument"),
        (b"", {}, 0, "invalid_argument"),
        (seal(packed(), 1), {}, 0, "invalid_argument"),
        (seal(b"no json"), {}, 0, "invalid_argument"),
        (seal(packed()), {"connect_content_encoding": "br"}, 0, "unimplemented"),
    ],
)
async def test_an_error_ends_a_stream(body: bytes, headers: dict[str, str], answers: int, code: str) -> None:
    client = Client(body)
    await client.ask(Echo().service(), "/test.Echo/Split", "application/connect+json", **headers)
    *before, last = client.envelopes
    assert (client.status, len(before), last.flags, json.loads(last.content)["error"]["code"]) == (200, answers, 2, code)


async def test_a_client_that_hangs_up_ends_its_stream() -> None:
    echo, client = Echo(), Client(seal(packed("a", "wait")))
    call = asyncio.create_task(client.ask(echo.service(), "/test.Echo/Split", "application/connect+json"))
    await echo.waiting.wait()
    client.hang_up.set()
    await call
    assert echo.closed.is_set()
    assert not client.complete


async def test_a_stream_of_requests() -> None:
    words = b"".join(seal(json.dumps({"cmd": word}).encode()) for word in ("a", "b", "c"))
    client = Client(words[:10], words[10:11], words[11:])
    await client.ask(Echo().service(), "/test.Echo/Join", "application/connect+json")
    answer, last = client.envelopes
    assert (json.loads(answer.content), last) == ({"args": ["a", "b", "c"]}, Envelope(2, b"{}"))
