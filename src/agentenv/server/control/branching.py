"""Routes that fork sandboxes and keep snapshots of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response

from agentenv.errors import AgentEnvError, NotFound
from agentenv.server import faults
from agentenv.server.catalogue import DEFAULT_TAG, Template
from agentenv.server.control import wire
from agentenv.server.control.answers import FAULTS
from agentenv.server.control.lists import Limit, Token
from agentenv.server.control.pages import NEXT_TOKEN, page
from agentenv.server.control.sandboxes import SandboxId
from agentenv.server.fleet import SandboxView
from agentenv.server.services import Given, Reader, User

router = APIRouter(responses=FAULTS)


@router.post("/sandboxes/{sandboxID}/fork", status_code=201, response_model_exclude_none=True, tags=["sandboxes"])
async def fork(
    sandbox: SandboxId, services: Given, principal: User, body: Annotated[wire.ForkRequest | None, Body()] = None
) -> list[wire.ForkResult]:
    """Starts sandboxes with what this one has now. It stands still for a moment and goes on; each fork succeeds or fails by itself."""
    wanted = body or wire.ForkRequest()
    born = await services.fleet.fork(principal.tenant, sandbox, wanted.count, float(wanted.timeout))
    return [_result(one) for one in born]


@router.post("/sandboxes/{sandboxID}/snapshots", status_code=201, response_model_exclude_none=True, tags=["sandboxes"])
async def create_snapshot(
    sandbox: SandboxId, services: Given, principal: User, body: Annotated[wire.SnapshotRequest | None, Body()] = None
) -> wire.SnapshotInfo:
    """Keeps what a sandbox has now, under a name or without one; `POST /sandboxes` starts from it like from a template."""
    wanted = body or wire.SnapshotRequest()
    kept = await services.fleet.snapshot(principal.tenant, sandbox, wanted.name, memory=wanted.memory is not False)
    return _info(kept.template, kept.tag)


@router.get("/snapshots", response_model_exclude_none=True, tags=["snapshots"])
async def list_snapshots(
    services: Given,
    principal: Reader,
    response: Response,
    source: Annotated[str | None, Query(alias="sandboxID", description="Only those of this sandbox.")] = None,
    name: Annotated[str | None, Query(description="Only that with this name or id.")] = None,
    next_token: Token = None,
    limit: Limit = 100,
) -> list[wire.SnapshotInfo]:
    """A page of snapshots, the latest first."""
    found = services.catalogue.all(principal.tenant.id, "snapshot")
    if source is not None:
        found = [one for one in found if one.source == source.lower()]
    if name is not None:
        found = [one for one in found if _is_called(one, name)]
    items, following = page(found, lambda one: (one.created, one.id), token=next_token, limit=limit, descending=True)
    if following is not None:
        response.headers[NEXT_TOKEN] = following
    return [_info(one, DEFAULT_TAG) for one in items]


@router.delete("/snapshots/{snapshotID}", status_code=204, tags=["snapshots"])
async def delete_snapshot(snapshotID: str, services: Given, principal: User) -> None:
    """Removes a snapshot; sandboxes that started from it are not affected."""
    found = services.catalogue.owned(principal.tenant.id, snapshotID)
    if found.kind != "snapshot":
        raise NotFound(f"there is no snapshot {snapshotID!r}.")
    await services.fleet.discard(await services.catalogue.delete(found))


def _is_called(snapshot: Template, name: str) -> bool:
    wanted, _, tag = name.partition(":")
    return wanted in (snapshot.name, snapshot.id) and (not tag or tag in snapshot.tags)


def _info(snapshot: Template, tag: str) -> wire.SnapshotInfo:
    label = snapshot.name or snapshot.id
    # Tags that are there go first by their age, so that a snapshot with only another tag still has a name that works.
    tags = list(snapshot.tags)
    chosen = tag if tag in snapshot.tags or not tags else tags[0]
    names = [f"{label}:{one}" for one in tags] if snapshot.name else []
    return wire.SnapshotInfo(snapshotID=f"{label}:{chosen}", names=names, sourceID=snapshot.source, createdAt=wire.moment(snapshot.created))


def _result(one: SandboxView | AgentEnvError) -> wire.ForkResult:
    if isinstance(one, AgentEnvError):
        status = faults.status_of(one)
        return wire.ForkResult(error=wire.ErrorBody(code=status, message=one.message, type=type(one).__name__, remedy=one.remedy))
    return wire.ForkResult(sandbox=wire.sandbox_of(one))
