"""What stands before the pages: nobody comes in without a session, and nothing but the dashboard's own pages may use one."""

from __future__ import annotations

from urllib.parse import urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from agentenv.errors import AgentEnvError, Unauthenticated
from agentenv.server.dashboard.sessions import COOKIE, Sessions
from agentenv.server.dashboard.viewer import SCOPE, Viewer
from agentenv.server.faults import body_of, response_of
from agentenv.server.services import Services

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    # Vue compiles templates in the browser, hence unsafe-eval. Nothing is loaded from anywhere else.
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'self'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


class Guard:
    """Around everything below /dashboard: refuses what pages of other origins ask for, and adds headers that browsers obey.

    Ports of sandboxes are served under other host names, and under /proxy/ with an opaque origin: their pages are others, too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or WebSocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        changes = scope["type"] == "websocket" or scope["method"] not in SAFE
        if changes and not same_origin(connection):
            await _refuse(scope, receive, send, JSONResponse(body_of(403, "this came from a page of another origin."), 403))
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        # A scope of its own: the server's audit log takes routes from it, and what is done here is noted by `Viewer.acting`.
        await self._app({**scope}, receive, with_headers)


class Gate:
    """Around what only those may see who are signed in: tells the pages who it is, and sends others to sign in."""

    def __init__(self, app: ASGIApp, services: Services, sessions: Sessions) -> None:
        self._app = app
        self._services = services
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or WebSocket."""
        connection = HTTPConnection(scope)
        try:
            session = self._sessions.read(connection.cookies.get(COOKIE))
        except Unauthenticated as error:
            page = scope["type"] == "http" and "text/html" in connection.headers.get("accept", "")
            await _refuse(scope, receive, send, to_sign_in(Request(scope)) if page else response_of(error))
            return
        scope[SCOPE] = Viewer(self._services, self._sessions, session, connection.client.host if connection.client else None)
        try:
            await self._app(scope, receive, send)
        except AgentEnvError as error:
            await _refuse(scope, receive, send, response_of(error))


def same_origin(connection: HTTPConnection) -> bool:
    """Whether a request comes from a page of this very origin. What is no browser sends no Origin, and no cookie of a user either."""
    origin = connection.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == connection.headers.get("host")


def to_sign_in(request: Request) -> Response:
    """Leads to the form for signing in, and from there back."""
    root = request.scope.get("root_path", "")
    back = request.url.path.removeprefix(root)
    return RedirectResponse(f"{root}/login?{urlencode({'next': back})}", 303)


async def _refuse(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).close(4403)
        return
    await response(scope, receive, send)
