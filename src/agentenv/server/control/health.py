"""Routes for whoever keeps the server running: does it live, does it take requests, what does it do (Prometheus)."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel
from sqlalchemy import text
from starlette.responses import PlainTextResponse

from agentenv.errors import InfrastructureError
from agentenv.server.control.answers import FAULTS
from agentenv.server.services import Given, Overseer
from agentenv.version import __version__

router = APIRouter(tags=["health"])


class Readiness(BaseModel):
    """Whether requests are taken, and if not, why."""

    ready: bool
    reason: str | None = None
    version: str = __version__


@router.get("/health", status_code=204)
async def health() -> None:
    """The server answers."""


@router.get("/health/live", status_code=204)
async def live() -> None:
    """The process lives: restart it when this does not answer."""


@router.get("/health/ready", responses={503: {"model": Readiness, "description": "Send no requests now."}})
async def ready(services: Given, response: Response) -> Readiness:
    """Whether requests should be sent: not while the server is ending or its database does not answer."""
    if services.fleet.leaving:
        response.status_code = 503
        return Readiness(ready=False, reason="the server is ending")
    try:
        async with services.database.read() as session:
            await session.execute(text("SELECT 1"))
    except InfrastructureError as error:
        response.status_code = 503
        return Readiness(ready=False, reason=error.message)
    return Readiness(ready=True)


@router.get("/metrics", responses=FAULTS, response_class=PlainTextResponse)
async def metrics(services: Given, principal: Overseer) -> PlainTextResponse:
    """Everything in Prometheus' text format; have Prometheus send an operator's key as a bearer token."""
    return PlainTextResponse(services.fleet.telemetry.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
