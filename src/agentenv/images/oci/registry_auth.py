"""How a registry is told who asks: by password, or by a token that another server gives for it.

The token flow is that of https://distribution.github.io/distribution/spec/auth/token/ and …/auth/oauth/.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Generator

import httpx
import msgspec

from agentenv.images.oci.credentials import Credentials

_PARAMETER = re.compile(r'([a-z_]+)="([^"]*)"')
_SCOPE: tuple[str, ...] = ("service", "scope")
_CLIENT = "agentenv"


class RegistryAuth(httpx.Auth):
    """Asks without credentials first, does what the answer demands, and remembers it. May be used from several threads."""

    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials
        self._header: str | None = None

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """One request, with the asking for a token where it is needed."""
        if self._header is not None:
            request.headers["Authorization"] = self._header
        # The body of the answer that was asked for is left alone: a blob does not fit into memory.
        response = yield request
        if response.status_code != httpx.codes.UNAUTHORIZED:
            return
        scheme, _, rest = response.headers.get("WWW-Authenticate", "").partition(" ")
        if scheme.lower() == "basic" and self._credentials is not None and self._credentials.identity is None:
            self._header = _basic(self._credentials)
        elif scheme.lower() == "bearer":
            answer = yield self._token_request(dict(_PARAMETER.findall(rest)))
            if answer.status_code != httpx.codes.OK:
                return
            body = msgspec.json.decode(answer.read())
            self._header = f"Bearer {body.get('token') or body.get('access_token') or ''}"
        else:
            return
        request.headers["Authorization"] = self._header
        yield request

    def _token_request(self, asked: dict[str, str]) -> httpx.Request:
        wanted: dict[str, str] = {name: asked[name] for name in _SCOPE if name in asked}
        realm = asked.get("realm", "")
        if self._credentials is None:
            return httpx.Request("GET", realm, params=httpx.QueryParams(wanted))
        if self._credentials.identity is not None:
            form: dict[str, str] = {
                "grant_type": "refresh_token",
                "refresh_token": self._credentials.identity,
                "client_id": _CLIENT,
                **wanted,
            }
            return httpx.Request("POST", realm, data=form)
        request = httpx.Request("GET", realm, params=httpx.QueryParams(wanted))
        request.headers["Authorization"] = _basic(self._credentials)
        return request


def _basic(credentials: Credentials) -> str:
    return "Basic " + base64.b64encode(f"{credentials.user}:{credentials.secret}".encode()).decode()
