"""Routes that act on one sandbox: create, look, pause, resume, connect, give it time, change its network, end it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Header, Path, Response

from agentenv.server.control import wire
from agentenv.server.control.answers import FAULTS, MISMATCH
from agentenv.server.services import Given, Reader, User

router = APIRouter(tags=["sandboxes"], responses=FAULTS)

SandboxId = Annotated[str, Path(alias="sandboxID", description="The sandbox's id, a UUID.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern="^[a-z0-9-]+$",
        description="The same key with the same body makes one sandbox, however often it is sent.",
    ),
]


@router.post("/sandboxes", status_code=201, response_model_exclude_none=True, responses=MISMATCH)
async def create(body: wire.NewSandbox, services: Given, principal: User, key: IdempotencyKey = None) -> wire.Sandbox:
    """Starts a sandbox from a template or snapshot."""
    return wire.sandbox_of(await services.fleet.create(principal.tenant, body.to_wish(), key))


@router.post("/v2/sandboxes", status_code=201, response_model_exclude_none=True, responses=MISMATCH)
async def create_v2(body: wire.NewSandboxV2, services: Given, principal: User, key: IdempotencyKey = None) -> wire.Sandbox:
    """Starts a sandbox from a template or snapshot; it lives longer than the first generation's where no timeout is given."""
    return wire.sandbox_of(await services.fleet.create(principal.tenant, body.to_wish(), key))


@router.get("/sandboxes/{sandboxID}", response_model_exclude_none=True)
async def get(sandbox: SandboxId, services: Given, principal: Reader) -> wire.SandboxDetail:
    """All about a sandbox."""
    return wire.detail(services.fleet.owned(principal.tenant, sandbox), principal)


@router.delete("/sandboxes/{sandboxID}", status_code=204)
async def kill(sandbox: SandboxId, services: Given, principal: User) -> None:
    """Ends a sandbox, whatever its state."""
    await services.fleet.kill(principal.tenant, sandbox)


@router.post("/sandboxes/{sandboxID}/pause", status_code=204)
async def pause(sandbox: SandboxId, services: Given, principal: User, body: Annotated[wire.Pause | None, Body()] = None) -> None:
    """Pauses a running sandbox; its files outlast the server, its memory where the backend can write that to disk."""
    await services.fleet.pause(principal.tenant, sandbox, memory=body is None or body.memory)


@router.post("/sandboxes/{sandboxID}/resume", status_code=201, response_model_exclude_none=True)
async def resume(sandbox: SandboxId, body: wire.Resumed, services: Given, principal: User) -> wire.Sandbox:
    """Resumes a paused sandbox."""
    keep = body.memory is not False
    return wire.sandbox_of(await services.fleet.resume(principal.tenant, sandbox, float(body.timeout), memory=keep))


@router.post(
    "/sandboxes/{sandboxID}/connect",
    response_model_exclude_none=True,
    responses={201: {"model": wire.Sandbox, "description": "It was paused, and is resumed."}},
)
async def connect(sandbox: SandboxId, body: wire.Connect, services: Given, principal: User, response: Response) -> wire.Sandbox:
    """A running sandbox, resumed first where it was paused (201). Its time is extended, never shortened."""
    keep = body.memory is not False
    view, resumed = await services.fleet.connect(principal.tenant, sandbox, float(body.timeout), memory=keep)
    response.status_code = 201 if resumed else 200
    return wire.sandbox_of(view)


@router.post(
    "/v2/sandboxes/{sandboxID}/connect",
    response_model_exclude_none=True,
    responses={201: {"model": wire.Sandbox, "description": "It was paused, and is resumed."}},
)
async def connect_v2(sandbox: SandboxId, body: wire.ConnectV2, services: Given, principal: User, response: Response) -> wire.Sandbox:
    """The same, with a default for the timeout."""
    return await connect(sandbox, body, services, principal, response)


@router.post("/sandboxes/{sandboxID}/timeout", status_code=204)
async def set_timeout(sandbox: SandboxId, body: wire.Timeout, services: Given, principal: User) -> None:
    """Its time ends so many seconds from now, whatever was granted before."""
    services.fleet.set_timeout(principal.tenant, sandbox, float(body.timeout))


@router.post("/sandboxes/{sandboxID}/refreshes", status_code=204)
async def refresh(sandbox: SandboxId, services: Given, principal: User, body: Annotated[wire.Refresh | None, Body()] = None) -> None:
    """A heartbeat: it lives so many seconds from now at least."""
    services.fleet.set_timeout(principal.tenant, sandbox, float((body or wire.Refresh()).duration), only_more=True)


@router.put("/sandboxes/{sandboxID}/network", status_code=204)
async def set_network(sandbox: SandboxId, body: wire.NetworkUpdate, services: Given, principal: User) -> None:
    """Replaces the rules for what a running sandbox may reach."""
    await services.fleet.set_network(principal.tenant, sandbox, body.to_rules(body.allow_internet_access))
