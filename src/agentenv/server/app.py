"""Puts the parts of the server together into one application."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from agentenv.server import control, dashboard, faults, nodeapi, proxy, templates, tracing, trainings
from agentenv.server.services import Services
from agentenv.version import __version__

DESCRIPTION = """Sandboxes on this machine: E2B's API in both generations, with a few fields and routes of our own.
Every route but /health wants an API key, in the header `X-API-Key`."""


class Part(Protocol):
    """What a room of the server hands out: adds its routes to `app`, or mounts an application. Routes of earlier parts go first."""

    def __call__(self, app: FastAPI, services: Services) -> None: ...


PARTS: Sequence[Part] = (
    nodeapi.install,
    templates.install,
    control.install,
    trainings.install,
    dashboard.install,
    proxy.install,
    tracing.install,
)
"""All parts, in order: routes are looked through one by one, so that those go first for which a millisecond counts."""


def create_app(services: Services, parts: Sequence[Part] = PARTS) -> FastAPI:
    """The application over services that are open, and stay so for as long as it runs."""
    facts: dict[str, Any] = {"title": "AgentENV", "version": __version__, "description": DESCRIPTION}
    # The page for people comes with the package, since a server may have no way to the internet.
    app = (
        FastAPIOffline(redoc_url=None, **facts)
        if services.settings.docs
        else FastAPI(docs_url=None, redoc_url=None, openapi_url=None, **facts)
    )
    app.state.services = services
    faults.install(app)
    for part in parts:
        part(app, services)
    _without_422(app)
    return app


def _without_422(app: FastAPI) -> None:
    """FastAPI documents an answer of its own to malformed requests; here they are answered 400, in the form of all errors."""
    generate = app.openapi

    def document() -> dict[str, Any]:
        found = generate()
        for path in found.get("paths", {}).values():
            for operation in path.values():
                if "HTTPValidationError" in str(operation["responses"].get("422")):
                    del operation["responses"]["422"]
        return found

    app.openapi = document  # type: ignore[method-assign]
