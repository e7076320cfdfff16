"""Takes the requests that are for a sandbox out of the server's own, checks who may come in, and passes them on."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from agentenv.errors import AgentEnvError, InvalidState, NotFound, SandboxDied, SandboxPaused
from agentenv.sandbox import AsyncSandbox
from agentenv.server.envd.admission import admit, signer
from agentenv.server.envd.app import PORT as ENVD_PORT
from agentenv.server.envd.app import query_of
from agentenv.server.envd.connect import ConnectError
from agentenv.server.envd.faults import status_of as refusal_status
from agentenv.server.faults import status_of
from agentenv.server.fleet import SandboxView, State
from agentenv.server.proxy.answers import Answer, not_found, not_open, send_answer
from agentenv.server.proxy.envds import Envds
from agentenv.server.proxy.headers import TRAFFIC_HEADERS, Headers, inward
from agentenv.server.proxy.http import relay_http
from agentenv.server.proxy.target import NoTarget, Target, find_target
from agentenv.server.proxy.upstream import connected
from agentenv.server.proxy.websocket import relay_websocket
from agentenv.server.services import Services

OF_NO_ORIGIN: Headers = [
    (b"content-security-policy", b"sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"),
]
"""For pages of sandboxes under the server's own host name: without it their scripts could act for whoever is signed in to the dashboard."""


class Sandboxes(Protocol):
    """What the proxy needs of the fleet: see `agentenv.server.fleet.Fleet`."""

    def record(self, sandbox_id: str) -> SandboxView: ...

    def in_use(self, sandbox_id: str) -> AbstractContextManager[None]: ...

    async def running(self, sandbox_id: str) -> AsyncSandbox: ...

    def whose_token(self, fits: Callable[[str], bool]) -> SandboxView | None: ...


class SandboxProxy:
    """ASGI middleware around the server's own application `app`."""

    def __init__(self, app: ASGIApp, sandboxes: Sandboxes, domain: str) -> None:
        self._app = app
        self._sandboxes = sandboxes
        self._domain = domain
        self._envds = Envds()
        # A page of any origin may speak to a sandbox whose token it has: there are no cookies that it could misuse.
        self._envd = CORSMiddleware(self._serve_envd, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"], expose_headers=["*"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or WebSocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        try:
            target = self._target(headers, scope)
            if target is not None:
                await self._serve(target, headers, scope, receive, send)
                return
        except Answer as answer:
            await send_answer(answer, scope, send)
            return
        await self._app(scope, receive, send)

    def _target(self, headers: Mapping[str, str], scope: Scope) -> Target | None:
        raw_path = scope.get("raw_path") or scope["path"].encode()
        try:
            return find_target(headers, raw_path, self._domain)
        except NoTarget as error:
            view = self._signed_for(scope)
            if view is None:
                raise Answer(400, str(error)) from error
            return Target(view.id, ENVD_PORT, raw_path)

    def _signed_for(self, scope: Scope) -> SandboxView | None:
        """The sandbox of a link that names none. Where E2B_SANDBOX_URL is set, the SDKs sign links to files that lead to that URL alone."""
        try:
            fits = signer(scope.get("method", ""), scope["path"], query_of(scope))
            return None if fits is None else self._sandboxes.whose_token(fits)
        except ConnectError as error:
            raise Answer(refusal_status(error), error.message) from error

    async def _serve(self, target: Target, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        try:
            view = self._sandboxes.record(target.sandbox_id)
            if target.port != ENVD_PORT:
                _check_traffic(view, headers)
                await self._pass_on(view, target, scope, receive, send)
            elif scope["type"] == "http":
                inner = {**scope, "path": target.path.decode("latin-1"), "raw_path": target.path, "agentenv.sandbox": view}
                await self._envd(inner, receive, send)
            else:
                raise Answer(501, "envd has no WebSockets", sandboxId=view.id)
        except NotFound:
            raise not_found(target.sandbox_id) from None
        except SandboxPaused as error:
            # The SDKs know a sandbox that does not run by these words and this status; whoever else asks learns that it is only paused.
            envd = target.port == ENVD_PORT
            raise Answer(502 if envd else 410, f"The sandbox was not found: {error}", sandboxId=target.sandbox_id) from error
        except (SandboxDied, InvalidState) as error:
            raise Answer(502, f"The sandbox was not found: {error}", sandboxId=target.sandbox_id) from error
        except AgentEnvError as error:
            raise Answer(status_of(error), str(error), sandboxId=target.sandbox_id) from error

    async def _serve_envd(self, scope: Scope, receive: Receive, send: Send) -> None:
        view: SandboxView = scope["agentenv.sandbox"]
        if view.state is not State.RUNNING:
            # Whoever may not come in must not wake it either, and asking whether it runs is no reason to.
            _check_before_waking(view, scope)
        with self._sandboxes.in_use(view.id):
            sandbox = await self._sandboxes.running(view.id)
            await self._envds.of(sandbox, view)(scope, receive, send)

    async def _pass_on(self, view: SandboxView, target: Target, scope: Scope, receive: Receive, send: Send) -> None:
        host = view.network.request_host
        headers = inward(
            scope["headers"],
            client=(scope.get("client") or ("unknown", 0))[0],
            scheme="https" if scope["scheme"] in ("https", "wss") else "http",
            prefix=target.prefix,
            host=host.replace("${PORT}", str(target.port)) if host else None,
        )
        query = scope["query_string"]
        path = target.path + (b"?" + query if query else b"")
        tls = target.port in view.network.https_ports
        with self._sandboxes.in_use(view.id):
            sandbox = await self._sandboxes.running(view.id)
            try:
                if scope["type"] == "websocket":
                    await relay_websocket(sandbox, target.port, scope, receive, send, path.decode("latin-1"), headers, tls=tls)
                else:
                    async with connected(sandbox, target.port, tls=tls) as upstream:
                        await relay_http(upstream, scope, receive, send, path, headers, OF_NO_ORIGIN if target.prefix else None)
            except ConnectionRefusedError as error:
                raise not_open(view.id, target.port) from error
            except OSError as error:
                raise Answer(502, f"the port cannot be reached: {error}", sandboxId=view.id, port=target.port) from error


def _check_before_waking(view: SandboxView, scope: Scope) -> None:
    """Raises `Answer` for a caller who may not come in, `SandboxPaused` for one who only asks whether it runs."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
    try:
        admit(view.envd_access_token, scope["method"], scope["path"], headers, query_of(scope))
    except ConnectError as error:
        raise Answer(refusal_status(error), error.message, sandboxId=view.id) from error
    if scope["path"] == "/health":
        raise SandboxPaused(f"sandbox {view.id} is {view.state}.")


def _check_traffic(view: SandboxView, headers: Mapping[str, str]) -> None:
    """Raises `Answer` unless the sandbox's ports are open to all, or the request carries its traffic token."""
    if view.network.public_traffic:
        return
    given = next((headers[name] for name in TRAFFIC_HEADERS if name in headers), None)
    if given is None or not hmac.compare_digest(given.encode(), view.traffic_access_token.encode()):
        problem = "is missing" if given is None else "is not that of this sandbox"
        raise Answer(403, f"the traffic token {problem}: send it in the header {TRAFFIC_HEADERS[0]}", sandboxId=view.id)


def install(app: FastAPI, services: Services) -> None:
    """Puts the proxy before all routes of the application."""
    app.add_middleware(SandboxProxy, sandboxes=services.fleet, domain=services.settings.public_domain)
