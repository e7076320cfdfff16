"""Bodies that are too large, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.conditions import needs_namespaces

from agentenv.server.control.body_limit import LARGEST, STREAMED

pytestmark = needs_namespaces


def in_pieces() -> Iterator[bytes]:
    for _ in range(LARGEST // 65536 + 1):
        yield b"x" * 65536


@pytest.mark.parametrize("path", ["/v3/templates", "/node/v1/sandboxes"])
@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_is_refused_in_a_sentence(client: httpx.Client, path: str, announced: bool) -> None:
    answer = client.post(path, content=b"x" * (LARGEST + 1) if announced else in_pieces())
    assert answer.status_code == 413
    assert str(LARGEST) in answer.json()["message"]
    assert client.get("/whoami").status_code == 200


def test_one_that_just_fits_is_read(client: httpx.Client) -> None:
    body = b'{"templateID": "' + b"x" * (LARGEST - 18) + b'"}'
    assert len(body) == LARGEST
    assert client.post("/sandboxes", content=body, headers={"content-type": "application/json"}).status_code == 400


@pytest.mark.parametrize(
    ("path", "streamed"),
    [
        ("/templates/t/files/0a/content", True),
        ("/templates/t/files/0a", False),
        ("/dashboard/sandboxes/s/file", True),
        ("/sandboxes", False),
    ],
)
def test_only_uploads_have_limits_of_their_own(path: str, streamed: bool) -> None:
    assert bool(STREAMED.fullmatch(path)) is streamed
