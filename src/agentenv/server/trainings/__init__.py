"""Training runs of this machine over HTTP, for the operator's keys: what they are, their metrics, and how they go on."""

from fastapi import FastAPI

from agentenv.server.services import Services
from agentenv.server.trainings.routes import router


def install(app: FastAPI, services: Services) -> None:
    """Adds the routes."""
    app.include_router(router)


__all__ = ["install"]
