"""Who may come in: the sandbox's access token, or a link to one file that was signed with it.

The signature is E2B's: `v1_` and the SHA-256 of `path:operation:user:token[:expiration]`, in base64 without padding
(https://github.com/e2b-dev/E2B/blob/main/packages/python-sdk/e2b/sandbox/signature.py).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Literal

from agentenv.server.envd.connect import Code, ConnectError

TOKEN_HEADER = "x-access-token"

Operation = Literal["read", "write"]

_SIGNED: Mapping[tuple[str, str], Operation] = {("GET", "/files"): "read", ("POST", "/files"): "write"}


def same(secret: str, given: str) -> bool:
    """Whether they are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(secret.encode(), given.encode())


def signature(path: str, operation: Operation, user: str, token: str, expiration: int | None) -> str:
    """The signature that lets anybody read or write one file, until `expiration` (unix seconds) if there is one."""
    parts = [path, operation, user, token, *([] if expiration is None else [str(expiration)])]
    return "v1_" + base64.b64encode(hashlib.sha256(":".join(parts).encode()).digest()).rstrip(b"=").decode()


def admit(token: str | None, method: str, path: str, headers: Mapping[str, str], query: Mapping[str, str]) -> None:
    """Raises `ConnectError` unless a request may come in: it has the token, or only asks whether the sandbox runs, or is a signed link.

    Without a token all may come in.
    """
    if token is None or (method, path) == ("GET", "/health"):
        return
    given = headers.get(TOKEN_HEADER)
    if given:
        if not same(token, given):
            raise ConnectError(Code.UNAUTHENTICATED, "the access token in the header X-Access-Token is not that of this sandbox")
    elif (method, path) in _SIGNED:
        _check_link(token, query, _SIGNED[method, path])
    else:
        raise ConnectError(Code.UNAUTHENTICATED, "this sandbox is secured: send its access token in the header X-Access-Token")


def _check_link(token: str, query: Mapping[str, str], operation: Operation) -> None:
    """Raises `ConnectError` unless a link is signed for this very file."""
    if not query.get("signature"):
        raise ConnectError(Code.UNAUTHENTICATED, "this sandbox is secured: send its access token (X-Access-Token), or use a signed link")
    if not _signed(token, operation, query):
        raise ConnectError(Code.UNAUTHENTICATED, "invalid signature: it does not belong to this file, operation, user and sandbox")
    expiration = _expiration(query.get("signature_expiration"))
    if expiration is not None and expiration < time.time():
        raise ConnectError(Code.UNAUTHENTICATED, "signature is already expired")


def signer(method: str, path: str, query: Mapping[str, str]) -> Callable[[str], bool] | None:
    """Tells the token that a link is signed with; None for a request that is no signed link. Raises `ConnectError`."""
    operation = _SIGNED.get((method, path))
    if operation is None or not query.get("signature"):
        return None
    return lambda token: _signed(token, operation, query)


def _signed(token: str, operation: Operation, query: Mapping[str, str]) -> bool:
    expiration = _expiration(query.get("signature_expiration"))
    return same(signature(query.get("path", ""), operation, query.get("username", ""), token, expiration), query["signature"])


def _expiration(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise ConnectError(Code.INVALID_ARGUMENT, f"signature_expiration is {text[:40]!r}; it is unix time in whole seconds")
    return int(text)
