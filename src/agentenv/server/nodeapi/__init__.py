"""The node's API: what our own handle asks a server for (docs/node-api.md), so that the server stands in for the node of this machine."""

from fastapi import FastAPI

from agentenv.server.nodeapi import routes
from agentenv.server.nodeapi.ends import Ends
from agentenv.server.nodeapi.leases import Leases
from agentenv.server.services import Services


def install(app: FastAPI, services: Services) -> None:
    """Adds the routes."""
    app.state.leases = Leases(services.fleet, services.settings.idle.lease)
    app.state.ends = Ends(services.fleet)
    app.include_router(routes.router)


__all__ = ["install"]
