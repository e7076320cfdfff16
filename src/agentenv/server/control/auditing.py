"""Notes in the audit log each request that changed something or was refused."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentenv.server.access import Principal
from agentenv.server.services import Services

CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
REFUSED = frozenset({401, 403})
UNNOTED = frozenset({"/sandboxes/{sandboxID}/refreshes", "/sandboxes/{sandboxID}/timeout"})
"""Heartbeats: they come every few seconds and say nothing."""


class Auditing:
    """Stands around the application's routes; what is mounted below them (the proxy into sandboxes) is not looked at."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._audit = services.access.audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on and notes how it was answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def noticing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noticing)
        finally:
            self._note(scope, status)

    def _note(self, scope: Scope, status: int) -> None:
        route = getattr(scope.get("route"), "path", None)
        if route is None or route in UNNOTED or not (scope["method"] in CHANGING or status in REFUSED):
            return
        principal = scope.get("state", {}).get("principal")
        target = "/".join(str(value) for value in scope.get("path_params", {}).values()) or None
        address = scope["client"][0] if scope.get("client") else None
        who = principal if isinstance(principal, Principal) else None
        self._audit.record(who, f"{scope['method']} {route}", target, status, address)
