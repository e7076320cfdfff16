"""Requests to a server's node API, and its faults as the errors that they are."""

from __future__ import annotations

from typing import Any, TypeVar

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
from agentenv.sandbox.remote.connections import Answer, Connections

T = TypeVar("T")

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
        self._connections = Connections(address)

    async def request(self, method: str, path: str, kind: type[T], body: object = None, *, headers: dict[str, str] | None = None) -> T:
        """The result of a request, as `kind`. Raises what the server's side raised, `InfrastructureError` where it cannot be reached."""
        content = None if body is None else msgspec.json.encode(body)
        response = await self._connections.ask(method, path, content, {"Content-Type": "application/json", **(headers or {})})
        if response.is_error:
            raise _fault(response, f"{self.address.url}{path}")
        try:
            return msgspec.json.decode(response.body or b"null", type=kind)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"{self.address.url} answered {path} with what is no answer of a node: {error}.") from error

    async def close(self) -> None:
        """Closes its connections; idempotent."""
        await self._connections.close()


class _Complaint(msgspec.Struct, frozen=True):
    """The body of an answer that is an error; `type` is missing where something before the server answered."""

    message: str
    type: str | None = None
    remedy: str | None = None
    fields: dict[str, Any] = {}


def _fault(response: Answer, url: str) -> AgentEnvError:
    try:
        said = msgspec.json.decode(response.body, type=_Complaint)
    except msgspec.MsgspecError:
        said = _Complaint(response.body[:200].decode(errors="replace") or "nothing more")
    if said.type is not None:
        return restored(Fault(said.type, said.message, said.remedy, said.fields))
    kind = _BY_STATUS.get(response.status, InfrastructureError)
    return kind(f"the server answered {response.status} to {url}: {said.message}", remedy=said.remedy)
