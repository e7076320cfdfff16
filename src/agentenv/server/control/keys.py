"""Routes about the caller: who it is, what it may have, and its tenant's API keys."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from agentenv.server.access import Key, Role
from agentenv.server.control import wire
from agentenv.server.control.answers import FAULTS
from agentenv.server.services import Administrator, Given, Reader

router = APIRouter(responses=FAULTS)

KeyName = Annotated[str, Field(min_length=1, max_length=128)]
KeyId = Annotated[str, Path(alias="apiKeyID", description="The id of an API key.")]


class NewKey(wire.Body):
    """A wished-for key. `role` is our own."""

    name: KeyName
    role: Role = Role.USER


class KeyRename(wire.Body):
    """What a key is to be called."""

    name: KeyName


class Mask(BaseModel):
    """What people recognise a key by."""

    prefix: str
    valueLength: int
    maskedValuePrefix: str
    maskedValueSuffix: str


class KeyInfo(BaseModel):
    """A key without its secret."""

    id: str
    name: str
    role: Role
    mask: Mask
    createdAt: datetime
    createdBy: None = None
    lastUsed: datetime | None


class CreatedKey(KeyInfo):
    """A key with its secret, which is shown this once."""

    key: str


class Identity(BaseModel):
    """Who asks, what it may have at once (null: no limit) and what it has."""

    tenantID: str
    tenant: str
    role: Role
    operator: bool
    keyID: str
    keyName: str
    quotas: dict[str, float | None]
    usage: dict[str, float]


class Team(BaseModel):
    """A tenant as E2B's clients know it. Its keys are secret, so that `apiKey` is empty."""

    teamID: str
    name: str
    apiKey: str = ""
    isDefault: bool = True


@router.get("/whoami", tags=["auth"])
async def whoami(services: Given, principal: Reader) -> Identity:
    """Whose key this is, and how much of the quotas is used."""
    tenant = principal.tenant
    templates = len(services.catalogue.all(tenant.id))
    return Identity(
        tenantID=tenant.id,
        tenant=tenant.name,
        role=principal.role,
        operator=principal.operates,
        keyID=principal.key,
        keyName=principal.key_name,
        quotas=tenant.quotas.to_json(),
        usage=asdict(services.fleet.usage_of(tenant)) | {"templates": templates},
    )


@router.get("/teams", tags=["auth"])
async def teams(principal: Reader) -> list[Team]:
    """The one tenant that the key belongs to."""
    return [Team(teamID=principal.tenant.id, name=principal.tenant.name)]


@router.get("/api-keys", tags=["api-keys"])
async def list_keys(services: Given, principal: Administrator) -> list[KeyInfo]:
    """The tenant's keys, the oldest first."""
    return [KeyInfo(**facts_of(key)) for key in services.access.keys_of(principal.tenant)]


@router.post("/api-keys", status_code=201, tags=["api-keys"])
async def create_key(body: NewKey, services: Given, principal: Administrator) -> CreatedKey:
    """Makes a key. Its secret is in the answer and nowhere else."""
    key, secret = await services.access.create_key(principal.tenant, body.name, body.role)
    return CreatedKey(**facts_of(key), key=secret)


@router.patch("/api-keys/{apiKeyID}", tags=["api-keys"])
async def rename_key(key: KeyId, body: KeyRename, services: Given, principal: Administrator) -> KeyInfo:
    """Calls a key otherwise."""
    await services.access.rename_key(services.access.key_of(principal.tenant, key), body.name)
    return KeyInfo(**facts_of(services.access.key_of(principal.tenant, key)))


@router.delete("/api-keys/{apiKeyID}", status_code=204, tags=["api-keys"])
async def delete_key(key: KeyId, services: Given, principal: Administrator) -> None:
    """Ends a key at once."""
    await services.access.delete_key(services.access.key_of(principal.tenant, key))


def facts_of(key: Key) -> dict[str, Any]:
    """What is told of a key."""
    return {
        "id": key.id,
        "name": key.name,
        "role": key.role,
        "mask": Mask(prefix=key.mask[:4], valueLength=key.length - 4, maskedValuePrefix=key.mask[4:6], maskedValueSuffix=key.mask[-4:]),
        "createdAt": wire.moment(key.created),
        "lastUsed": None if key.last_used is None else wire.moment(key.last_used),
    }
