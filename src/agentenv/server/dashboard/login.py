"""Signing in and out: a plain form, which works before anything else of the dashboard is loaded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from agentenv.errors import Unauthenticated
from agentenv.server.access import Access, Principal
from agentenv.server.dashboard.gate import to_sign_in
from agentenv.server.dashboard.rendering import render
from agentenv.server.dashboard.sessions import COOKIE, LIFETIME, Sessions

LONGEST_FORM = 16 << 10
"""Bytes."""


class Login:
    """The routes for it; `somebody_comes` is called when the form is asked for."""

    def __init__(self, access: Access, sessions: Sessions, somebody_comes: Callable[[], None]) -> None:
        self._access = access
        self._sessions = sessions
        self._somebody_comes = somebody_comes

    def routes(self) -> list[Route]:
        """Where they are, below /dashboard."""
        return [
            Route("/login", self.form, methods=["GET"]),
            Route("/login", self.sign_in, methods=["POST"]),
            Route("/logout", self.sign_out, methods=["POST"]),
        ]

    async def form(self, request: Request) -> Response:
        """The form."""
        self._somebody_comes()
        return _form(request, _inside(request.query_params.get("next", "/")))

    async def sign_in(self, request: Request) -> Response:
        """Takes the key, and gives a cookie for it."""
        fields = await _fields(request)
        back = _inside(fields.get("next", "/"))
        try:
            principal = self._access.principal_of(fields.get("key", "").strip())
        except Unauthenticated as error:
            self._note(request, None, 401)
            return _form(request, back, str(error), 401)
        self._note(request, principal, 200)
        answer = RedirectResponse(request.scope["root_path"] + back, 303)
        answer.set_cookie(
            COOKIE,
            self._sessions.begin(principal),
            max_age=LIFETIME,
            path=request.scope["root_path"],
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def sign_out(self, request: Request) -> Response:
        """Ends the session."""
        with suppress(Unauthenticated):  # It may have ended already.
            self._sessions.end(self._sessions.read(request.cookies.get(COOKIE)))
        answer = to_sign_in(request)
        answer.headers["location"] = request.scope["root_path"] + "/login"
        answer.delete_cookie(COOKIE, path=request.scope["root_path"])
        return answer

    def _note(self, request: Request, principal: Principal | None, status: int) -> None:
        address = request.client.host if request.client else None
        self._access.audit.record(principal, "dashboard: sign in", None, status, address)


def _form(request: Request, back: str, problem: str = "", status: int = 200) -> Response:
    page = render("login.html", root=request.scope["root_path"], next=back, problem=problem)
    return HTMLResponse(page, status, {"Cache-Control": "no-store"})


def _inside(path: str) -> str:
    """Where to go after signing in: a page of the dashboard, whatever was asked for."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\", "/login", "/logout")) and path.isprintable()
    return path if plain else "/"


async def _fields(request: Request) -> dict[str, str]:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_FORM:
            return {}
    return {name: values[0] for name, values in parse_qs(body.decode(errors="replace")).items()}
