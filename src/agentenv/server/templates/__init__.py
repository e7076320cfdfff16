"""Templates over HTTP, as E2B's clients build them: routes, uploads of files, and the builds that run."""

from fastapi import FastAPI

from agentenv.server.services import Services
from agentenv.server.templates import first_generation, routes, tags


def install(app: FastAPI, services: Services) -> None:
    """Adds the routes."""
    # Of two routes that fit, the first is taken: /templates/tags before /templates/{templateID}.
    for part in (tags, routes, first_generation):
        app.include_router(part.router)
    app.state.first_generation = first_generation.Waiting(services.catalogue)


__all__ = ["install"]
