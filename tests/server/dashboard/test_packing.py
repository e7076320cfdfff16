"""Files of the pages: the same bytes, compressed once, and nothing else kept."""

from __future__ import annotations

import gzip

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agentenv.server.dashboard.packing import Packed

SCRIPT = "let a = 1;\n" * 1000


def application() -> tuple[list[str], httpx.AsyncClient]:
    asked: list[str] = []

    async def any_path(request: Request) -> Response:
        asked.append(request.url.path)
        if "missing" in request.url.path:
            return PlainTextResponse("no", 404)
        return PlainTextResponse(SCRIPT, headers={"Cache-Control": "immutable"})

    app = Packed(Starlette(routes=[Route("/{path:path}", any_path, methods=["GET", "POST"])]))
    return asked, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


async def test_a_file_is_asked_for_once_and_sent_compressed() -> None:
    asked, client = application()
    async with client:
        answers = [await client.get("/_nicegui/1/static/a.js", headers={"If-None-Match": "x"}) for _ in range(3)]
        async with client.stream("GET", "/_nicegui/1/static/a.js") as raw:
            packed = b"".join([piece async for piece in raw.aiter_raw()])
    assert [answer.text for answer in answers] == [SCRIPT] * 3
    assert {answer.headers["content-encoding"] for answer in answers} == {"gzip"}
    assert answers[2].headers["cache-control"] == "immutable"
    assert gzip.decompress(packed).decode() == SCRIPT
    assert len(packed) < len(SCRIPT) / 20
    assert asked == ["/_nicegui/1/static/a.js"]


async def test_what_is_no_file_passes() -> None:
    asked, client = application()
    async with client:
        for path in ("/", "/_nicegui/client/7/upload/1", "/_nicegui/1/dynamic_resources/x", "/_nicegui/1/missing"):
            await client.get(path)
            await client.get(path)
        await client.post("/_nicegui/1/static/a.js")
        answer = await client.get("/_nicegui/1/static/b.js", headers={"Accept-Encoding": "identity"})
    assert answer.text == SCRIPT
    assert "content-encoding" not in answer.headers
    assert len(asked) == 10
