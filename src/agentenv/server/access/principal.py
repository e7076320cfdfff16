"""Who asks: a tenant through one of its keys, with a role."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any

from agentenv.errors import Forbidden
from agentenv.server.settings import QuotaSettings


class Role(enum.StrEnum):
    """What a key may do: read, use sandboxes and templates, or administer its tenant's keys too."""

    READ_ONLY = "read-only"
    USER = "user"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """The higher may do all that the lower may."""
        return list(Role).index(self)


@dataclass(frozen=True, slots=True)
class Quotas:
    """What a tenant may have at once (memory and storage in bytes, cpu in cores); None is without limit."""

    sandboxes: int | None = None
    cpu: float | None = None
    memory: int | None = None
    storage: int | None = None
    templates: int | None = None

    @classmethod
    def of(cls, settings: QuotaSettings) -> Quotas:
        """Those that a new tenant gets."""
        return cls(**settings.model_dump())

    def to_json(self) -> dict[str, Any]:
        """As the database keeps them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who owns things. Admins of the one that is `operator` administer the server."""

    id: str
    name: str
    operator: bool
    quotas: Quotas


@dataclass(frozen=True, slots=True)
class Principal:
    """A tenant through one of its keys."""

    tenant: Tenant
    role: Role
    key: str
    """The id of the key."""
    key_name: str

    @property
    def operates(self) -> bool:
        """Whether this key may administer the server."""
        return self.role is Role.ADMIN and self.tenant.operator

    @property
    def oversees(self) -> bool:
        """Whether this key may look at what concerns the whole server."""
        return self.tenant.operator

    def require(self, role: Role) -> None:
        """Raises `Forbidden` when the key's role does not reach `role`."""
        if self.role.rank < role.rank:
            raise Forbidden(f"the key {self.key_name!r} is {self.role}, and this needs {role}.", remedy="Use another key.")

    def require_operator(self) -> None:
        """Raises `Forbidden` when the key may not administer the server."""
        if not self.operates:
            raise Forbidden("this is for administrators of the server.", remedy="Use an admin key of the operator's tenant.")
