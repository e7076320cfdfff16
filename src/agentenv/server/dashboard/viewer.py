"""Who looks at a page: asked anew at each step, so that a key that was taken away or may less than before has no page left that acts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.requests import Request

from agentenv.errors import AgentEnvError, Forbidden
from agentenv.server.access import Principal, Role, Tenant
from agentenv.server.dashboard.sessions import Session, Sessions
from agentenv.server.faults import status_of
from agentenv.server.services import Services

SCOPE = "agentenv.viewer"
"""Where the gate puts the viewer into the ASGI scope."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """One signed-in user of the dashboard. Every property raises `Unauthenticated` once the session has ended."""

    services: Services
    sessions: Sessions
    session: Session
    address: str | None

    @property
    def principal(self) -> Principal:
        """Who it is now."""
        return self.sessions.principal(self.session)

    @property
    def tenant(self) -> Tenant:
        """Whose things are shown."""
        return self.principal.tenant

    @property
    def acts(self) -> bool:
        """Whether it may change anything."""
        return self.principal.role is not Role.READ_ONLY

    @contextmanager
    def acting(self, action: str, target: str | None = None, *, role: Role = Role.USER) -> Iterator[Principal]:
        """Around something that changes what there is: refuses those who may not, and notes it in the audit log either way."""
        principal = self.principal
        status = 500
        try:
            principal.require(role)
            yield principal
            status = 200
        except AgentEnvError as error:
            status = status_of(error)
            raise
        finally:
            self.services.access.audit.record(principal, f"dashboard: {action}", target, status, self.address)

    def require_overseer(self) -> None:
        """Raises `Forbidden` for whoever is not of the operator's tenant."""
        if not self.principal.oversees:
            raise Forbidden("this is for the operator of the server.", remedy="Sign in with a key of the operator's tenant.")


def viewer_of(request: Request) -> Viewer:
    """Who asks for a page."""
    viewer = request.scope[SCOPE]
    assert isinstance(viewer, Viewer)
    return viewer
