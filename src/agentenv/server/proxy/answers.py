"""What the proxy answers itself: to programs as JSON, in words that E2B's SDKs know; to browsers as a short page."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from http import HTTPStatus

from starlette.types import Scope, Send


class Answer(Exception):
    """A request that the proxy answers itself. `facts` go into the JSON beside the code and the message."""

    def __init__(self, status: int, message: str, **facts: object) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.facts = facts


def not_found(sandbox_id: str) -> Answer:
    """There is no such sandbox, or none any more."""
    return Answer(502, "The sandbox was not found", sandboxId=sandbox_id)


def not_open(sandbox_id: str, port: int) -> Answer:
    """Nobody listens there."""
    hint = f"Start a server in the sandbox that listens on 127.0.0.1:{port} or 0.0.0.0:{port}."
    return Answer(502, f"The sandbox is running but port is not open. {hint}", sandboxId=sandbox_id, port=port)


async def send_answer(answer: Answer, scope: Scope, send: Send) -> None:
    """Answers a request, or a WebSocket that is not open yet."""
    accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    if b"text/html" in accept and scope["type"] == "http":
        content_type, body = "text/html; charset=utf-8", _page(answer)
    else:
        content_type, body = "application/json", json.dumps({"code": answer.status, "message": answer.message, **answer.facts}).encode()
    kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
    if scope["type"] == "websocket" and "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008, "reason": answer.message[:120]})
        return
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    await send({"type": f"{kind}.start", "status": answer.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})


def _page(answer: Answer) -> bytes:
    rows = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>" for name, value in _shown(answer.facts).items())
    title = f"{answer.status} {HTTPStatus(answer.status).phrase}"
    style = "body{font:16px/1.5 system-ui;margin:15vh auto;max-width:34em;padding:0 1em;color-scheme:light dark}dt{opacity:.6}"
    return (
        f'<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><title>{title}</title><style>{style}</style>'
        f"<h1>{title}</h1><p>{html.escape(answer.message)}</p><dl>{rows}</dl></html>"
    ).encode()


def _shown(facts: Mapping[str, object]) -> dict[str, object]:
    return {{"sandboxId": "Sandbox"}.get(name, name.capitalize()): value for name, value in facts.items()}
