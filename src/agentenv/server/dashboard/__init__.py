"""The dashboard: what happens on this server, in a browser. Pages under /dashboard, behind a login with an API key."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Mount

from agentenv.server.dashboard import content
from agentenv.server.dashboard.gate import Gate, Guard
from agentenv.server.dashboard.host import Host
from agentenv.server.dashboard.login import Login
from agentenv.server.dashboard.sessions import Sessions, read_secret
from agentenv.server.services import Services

PATH = "/dashboard"


def install(app: FastAPI, services: Services) -> None:
    """Mounts it, and leads from / to it."""
    sessions = Sessions(services.access, read_secret(services.directory))
    host = Host(services.closing)
    pages = Starlette(routes=[*content.ROUTES, Mount("/", host)])
    login = Login(services.access, sessions, host.warm_up)
    inner = Starlette(routes=[*login.routes(), Mount("/", Gate(pages, services, sessions))])

    @app.get("/", include_in_schema=False)
    async def entrance() -> RedirectResponse:
        return RedirectResponse(f"{PATH}/")

    app.mount(PATH, Guard(inner))


__all__ = ["install"]
