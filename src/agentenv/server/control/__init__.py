"""The routes that act on sandboxes from outside: E2B's control API in both generations, with a few fields of our own."""

from fastapi import FastAPI

from agentenv.server.control import administration, branching, health, history, keys, lists, nodes, sandboxes, unsupported
from agentenv.server.control.auditing import Auditing
from agentenv.server.control.body_limit import BodyLimit
from agentenv.server.services import Services


def install(app: FastAPI, services: Services) -> None:
    """Adds the routes."""
    # Of two routes that fit, the first is taken: /sandboxes/metrics before /sandboxes/{sandboxID}.
    for part in (health, history, lists, branching, sandboxes, keys, administration, nodes, unsupported):
        app.include_router(part.router)
    app.add_middleware(BodyLimit)
    app.add_middleware(Auditing, services=services)


__all__ = ["install"]
