"""Puts the parts of the server together into one application."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fastapi import FastAPI

from agentenv.server import control, faults, nodeapi, proxy, templates
from agentenv.server.services import Services
from agentenv.version import __version__


class Part(Protocol):
    """What a room of the server hands out: adds its routes to `app`, or mounts an application. Routes of earlier parts go first."""

    def __call__(self, app: FastAPI, services: Services) -> None: ...


PARTS: Sequence[Part] = (templates.install, control.install, nodeapi.install, proxy.install)
"""All parts, in order."""


def create_app(services: Services, parts: Sequence[Part] = PARTS) -> FastAPI:
    """The application over services that are open, and stay so for as long as it runs."""
    app = FastAPI(
        title="AgentENV",
        version=__version__,
        docs_url="/docs" if services.settings.docs else None,
        openapi_url="/openapi.json" if services.settings.docs else None,
        redoc_url=None,
    )
    app.state.services = services
    faults.install(app)
    for part in parts:
        part(app, services)
    return app
