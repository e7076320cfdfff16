"""Routes for the operator: tenants with their quotas and keys, and the audit log."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from agentenv.server.access import Quotas, Tenant
from agentenv.server.catalogue import check_name
from agentenv.server.control import wire
from agentenv.server.control.answers import FAULTS
from agentenv.server.control.keys import CreatedKey, KeyId, KeyInfo, NewKey, facts_of
from agentenv.server.services import Given, Operator, Services

router = APIRouter(prefix="/admin", tags=["administration"], responses=FAULTS)

TenantId = Annotated[str, Path(alias="tenantID", description="The id or name of a tenant.")]


class QuotaBody(wire.Body):
    """What a tenant may have at once; memory and storage in bytes, cpu in cores; null is without limit."""

    sandboxes: Annotated[int, Field(ge=0, le=2**31)] | None = None
    cpu: Annotated[float, Field(ge=0, le=2**31, allow_inf_nan=False)] | None = None
    memory: Annotated[int, Field(ge=0, le=2**60)] | None = None
    storage: Annotated[int, Field(ge=0, le=2**60)] | None = None
    templates: Annotated[int, Field(ge=0, le=2**31)] | None = None

    def over(self, before: Quotas) -> Quotas:
        """The quotas with what was given put over those of before."""
        return Quotas(**(before.to_json() | self.model_dump(exclude_unset=True)))


class NewTenant(wire.Body):
    """A wished-for tenant; quotas that are left out are those of the settings."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    quotas: QuotaBody = QuotaBody()


class TenantInfo(BaseModel):
    """A tenant, what it may have and what it has."""

    id: str
    name: str
    operator: bool
    quotas: dict[str, float | None]
    usage: dict[str, float]


class AuditLine(BaseModel):
    """One request that changed something or was refused."""

    id: int
    time: float
    tenant: str | None
    key: str | None
    address: str | None
    action: str
    target: str | None
    status: int


@router.get("/tenants")
async def tenants(services: Given, principal: Operator) -> list[TenantInfo]:
    """All tenants, by name."""
    return [_info(services, tenant) for tenant in services.access.tenants()]


@router.post("/tenants", status_code=201)
async def create_tenant(body: NewTenant, services: Given, principal: Operator) -> TenantInfo:
    """Makes a tenant, still without keys."""
    check_name(body.name)
    quotas = body.quotas.over(Quotas.of(services.settings.quotas))
    return _info(services, await services.access.create_tenant(body.name, quotas))


@router.patch("/tenants/{tenantID}")
async def set_quotas(tenant: TenantId, body: QuotaBody, services: Given, principal: Operator) -> TenantInfo:
    """Changes what a tenant may have; what is left out stays."""
    found = services.access.tenant(tenant)
    return _info(services, await services.access.set_quotas(found, body.over(found.quotas)))


@router.delete("/tenants/{tenantID}", status_code=204)
async def delete_tenant(tenant: TenantId, services: Given, principal: Operator) -> None:
    """Removes a tenant that owns nothing any more, with its keys."""
    await services.access.delete_tenant(services.access.tenant(tenant))


@router.get("/tenants/{tenantID}/api-keys")
async def list_keys(tenant: TenantId, services: Given, principal: Operator) -> list[KeyInfo]:
    """A tenant's keys, the oldest first."""
    return [KeyInfo(**facts_of(key)) for key in services.access.keys_of(services.access.tenant(tenant))]


@router.post("/tenants/{tenantID}/api-keys", status_code=201)
async def create_key(tenant: TenantId, body: NewKey, services: Given, principal: Operator) -> CreatedKey:
    """Makes a key for a tenant. Its secret is in the answer and nowhere else."""
    key, secret = await services.access.create_key(services.access.tenant(tenant), body.name, body.role)
    return CreatedKey(**facts_of(key), key=secret)


@router.delete("/tenants/{tenantID}/api-keys/{apiKeyID}", status_code=204)
async def delete_key(tenant: TenantId, key: KeyId, services: Given, principal: Operator) -> None:
    """Ends a key of a tenant at once."""
    await services.access.delete_key(services.access.key_of(services.access.tenant(tenant), key))


@router.get("/audit")
async def audit(
    services: Given,
    principal: Operator,
    tenant: Annotated[str | None, Query(description="Only of this tenant (id).")] = None,
    before: Annotated[int | None, Query(ge=0, le=2**62, description="Only lines with a smaller id: for the next page.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[AuditLine]:
    """The latest lines of the audit log first."""
    return [AuditLine(**asdict(one)) for one in await services.access.audit.entries(tenant=tenant, before=before, limit=limit)]


@router.post("/gc")
async def collect_garbage(services: Given, principal: Operator) -> dict[str, Any]:
    """Removes what nothing needs any more: snapshots of nobody, layers, outdated images, old lines."""
    return await services.fleet.collect_garbage()


def _info(services: Services, tenant: Tenant) -> TenantInfo:
    usage = asdict(services.fleet.usage_of(tenant)) | {"templates": len(services.catalogue.all(tenant.id))}
    return TenantInfo(id=tenant.id, name=tenant.name, operator=tenant.operator, quotas=tenant.quotas.to_json(), usage=usage)
