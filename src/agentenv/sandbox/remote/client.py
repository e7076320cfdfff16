"""Requests to a server's node API, and its faults as the errors that they are."""

from __future__ import annotations

from typing import Any, TypeVar

import httpx
import msgspec

from agentenv.errors import (
    AgentEnvError,
    Forbidden,
    InfrastructureError,
    InvalidState,
    NotFound,
    ProtocolError,
    QuotaExceeded,
    Unauthenticated,
)
from agentenv.node.control import Fault, restored
from agentenv.sandbox.remote.address import ServerAddress

T = TypeVar("T")

_CONNECT_SECONDS = 10.0
_CONNECTIONS = 64
_BY_STATUS: dict[int, type[AgentEnvError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: InvalidState,
    410: InvalidState,
    422: InvalidState,
    429: QuotaExceeded,
}


class ApiClient:
    """One server, seen from one event loop."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        # How long an operation may take, the server decides: a start has a time-out of its own, a snapshot takes as long as it takes.
        self._http = httpx.AsyncClient(
            base_url=address.url,
            headers={"X-API-Key": address.api_key, "Content-Type": "application/json"},
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS),
        )

    async def request(self, method: str, path: str, kind: type[T], body: object = None, *, headers: dict[str, str] | None = None) -> T:
        """The result of a request, as `kind`. Raises what the server's side raised, `InfrastructureError` where it cannot be reached."""
        content = None if body is None else msgspec.json.encode(body)
        try:
            response = await self._http.request(method, path, content=content, headers=headers)
        except httpx.TransportError as error:
            raise InfrastructureError(
                f"the server {self.address.url} cannot be reached: {error or type(error).__name__}.",
                remedy="Look whether `agentenv serve` runs there.",
            ) from error
        if response.is_error:
            raise _fault(response)
        try:
            return msgspec.json.decode(response.content or b"null", type=kind)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"{self.address.url} answered {path} with what is no answer of a node: {error}.") from error

    async def close(self) -> None:
        """Closes its connections; idempotent."""
        await self._http.aclose()


class _Complaint(msgspec.Struct, frozen=True):
    """The body of an answer that is an error; `type` is missing where something before the server answered."""

    message: str
    type: str | None = None
    remedy: str | None = None
    fields: dict[str, Any] = {}


def _fault(response: httpx.Response) -> AgentEnvError:
    try:
        said = msgspec.json.decode(response.content, type=_Complaint)
    except msgspec.MsgspecError:
        said = _Complaint(response.text[:200] or response.reason_phrase)
    if said.type is not None:
        return restored(Fault(said.type, said.message, said.remedy, said.fields))
    kind = _BY_STATUS.get(response.status_code, InfrastructureError)
    return kind(f"the server answered {response.status_code} to {response.request.url}: {said.message}", remedy=said.remedy)
