"""Connections to one server, each for one request at a time: one that is free is taken, else another is made.

There is no limit to them, since a wait for the end of a sandbox may last long and must not keep a start from being asked for. httpx's own
pool gives a connection that has become free to all requests that wait, of which all but one try again, for seconds where there are many.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from http import HTTPStatus

import httpcore

from agentenv.errors import InfrastructureError
from agentenv.sandbox.remote.address import ServerAddress

CONNECT_SECONDS = 10.0
KEPT = 64
"""Free connections that are kept."""
KEPT_SECONDS = 300.0
"""For so long; the server keeps them longer, so that it closes none that a request is just being sent over."""

_FAULTS = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered: its status, and the whole body."""

    status: int
    body: bytes

    @property
    def is_error(self) -> bool:
        """Whether the request did not do what it was to do."""
        return self.status >= HTTPStatus.BAD_REQUEST


class Connections:
    """Those of one event loop."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._origin = httpcore.Origin(b"https" if address.secure else b"http", address.host.encode("idna"), address.port)
        host = f"[{address.host}]" if ":" in address.host else address.host
        self._headers = {"Host": f"{host}:{address.port}", "X-API-Key": address.api_key, "Accept": "application/json"}
        self._tls: ssl.SSLContext | None = None
        self._free: list[httpcore.AsyncHTTPConnection] = []

    async def ask(self, method: str, path: str, content: bytes | None, headers: dict[str, str] | None = None) -> Answer:
        """The answer to a request, however long it takes. Raises `InfrastructureError` where the server cannot be reached."""
        said = [*self._headers.items(), ("Content-Length", str(len(content or b""))), *(headers or {}).items()]
        url = httpcore.URL(
            scheme=self._origin.scheme, host=self._origin.host, port=self._origin.port, target=f"{self._address.path}{path}".encode()
        )
        request = httpcore.Request(method, url, headers=said, content=content, extensions={"timeout": {"connect": CONNECT_SECONDS}})
        try:
            connection = await self._take()
            answer = await _exchange(connection, request)
        except _FAULTS as error:
            raise InfrastructureError(
                f"the server {self._address.url} cannot be reached: {error or type(error).__name__}.",
                remedy="Look whether `agentenv serve` runs there.",
            ) from error
        if connection.is_idle() and len(self._free) < KEPT:
            self._free.append(connection)
        else:
            await connection.aclose()
        return answer

    async def close(self) -> None:
        """Closes those that are free; idempotent."""
        while self._free:
            await self._free.pop().aclose()

    async def _take(self) -> httpcore.AsyncHTTPConnection:
        while self._free:
            connection = self._free.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        if self._address.secure and self._tls is None:
            self._tls = ssl.create_default_context()
        return httpcore.AsyncHTTPConnection(self._origin, self._tls, KEPT_SECONDS)


async def _exchange(connection: httpcore.AsyncHTTPConnection, request: httpcore.Request) -> Answer:
    try:
        response = await connection.handle_async_request(request)
        body = await response.aread()
        await response.aclose()
    except BaseException:
        await connection.aclose()
        raise
    return Answer(response.status, body)
