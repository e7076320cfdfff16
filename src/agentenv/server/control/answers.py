"""What routes may answer besides success, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from agentenv.server.control.wire import ErrorBody

_MEANINGS = {
    400: "The request cannot be understood or granted.",
    401: "No API key, a wrong one, or several.",
    403: "The key's role does not allow it.",
    404: "There is no such thing for this key's tenant.",
    409: "It does not fit the present state.",
    413: "The body is larger than this route takes.",
    429: "A quota or the server's capacity is used up; Retry-After says when to try again.",
    501: "Known, and not offered here.",
    502: "The sandbox died.",
    503: "The machinery failed, or the server is ending.",
    504: "A sandbox did not start in time.",
    507: "A limit of a sandbox or the disk was reached.",
}

MISMATCH: dict[int | str, dict[str, Any]] = {
    422: {"model": ErrorBody, "description": "The Idempotency-Key came with another request before."}
}
"""Besides, for routes that take an Idempotency-Key."""

FAULTS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody, "description": text} for status, text in _MEANINGS.items()}
"""For every route that needs a key."""
