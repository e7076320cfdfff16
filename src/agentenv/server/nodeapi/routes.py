"""The node's API over HTTP. A client's sandboxes live under its lease; each call is one of `calls`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated, Any, cast

import msgspec
from fastapi import APIRouter, Body, Header, Path, Request, Response

from agentenv.errors import CapabilityError, InvalidState, NotFound
from agentenv.isolation.contract import Exit
from agentenv.node.records import SandboxRequest
from agentenv.node.templates import SCHEME
from agentenv.sandbox.remote.wire import PREFIX, Ended, Lease, RemoteSandbox, Waited
from agentenv.server.access import Tenant
from agentenv.server.building.bases import Bases
from agentenv.server.catalogue import BASE, Build, Recipe, loose
from agentenv.server.control.answers import FAULTS, MISMATCH
from agentenv.server.control.sandboxes import IdempotencyKey, SandboxId
from agentenv.server.fleet import NetworkRules, SandboxView, Wish
from agentenv.server.nodeapi.calls import CALLS, Target, rules_of, snapshot_of
from agentenv.server.nodeapi.ends import Ends
from agentenv.server.nodeapi.leases import Leases
from agentenv.server.services import Given, Reader, Services, User

WAIT = 20.0
"""Seconds that one request waits for the end of a sandbox; shorter than what lies between cuts a silent connection after."""

router = APIRouter(prefix=PREFIX, tags=["node"], responses=FAULTS)

LeaseId = Annotated[str, Path(alias="leaseID", max_length=64)]
UnderLease = Annotated[str | None, Header(alias="X-AgentENV-Lease", max_length=64, description="The lease that the sandbox lives under.")]
Answer = Response


def _answer(value: object, status: int = 200) -> Answer:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _leases(request: Request) -> Leases:
    return cast(Leases, request.app.state.leases)


def _ends(request: Request) -> Ends:
    return cast(Ends, request.app.state.ends)


@router.post("/leases", status_code=201)
async def open_lease(request: Request, principal: User) -> Answer:
    """A lease for a client's sandboxes: they end when it is not renewed in time."""
    leases = _leases(request)
    return _answer(Lease(leases.open(principal.tenant), leases.seconds), 201)


@router.put("/leases/{leaseID}", status_code=204)
async def renew_lease(lease: LeaseId, request: Request, principal: User) -> None:
    """The client is still there."""
    _leases(request).renew(principal.tenant, lease)


@router.delete("/leases/{leaseID}", status_code=204)
async def give_lease_back(lease: LeaseId, request: Request, principal: User) -> None:
    """The client has ended; its sandboxes end."""
    await _leases(request).give_back(principal.tenant, lease)


@router.post("/sandboxes", status_code=201, responses=MISMATCH)
async def create(
    wanted: Annotated[SandboxRequest, Body()],
    request: Request,
    services: Given,
    principal: User,
    key: IdempotencyKey = None,
    lease: UnderLease = None,
) -> Answer:
    """Starts a sandbox from an image of the server's machine, a template or a snapshot."""
    leases = _leases(request)
    if lease is not None:
        leases.renew(principal.tenant, lease)
    view = await services.fleet.create(principal.tenant, _wish(wanted, services, principal.tenant), key)
    if lease is not None:
        try:
            leases.bind(principal.tenant, lease, view.id)
        except NotFound:
            await services.fleet.kill(principal.tenant, view.id, reason="its client's lease was over before it had started")
            raise
    _ends(request).watch(principal.tenant.id, view.id)
    return _answer(_told(services, view), 201)


@router.get("/sandboxes")
async def all_sandboxes(services: Given, principal: Reader) -> Answer:
    """Every sandbox of the key's tenant, the oldest first."""
    return _answer([_told(services, view) for view in reversed(services.fleet.all(principal.tenant))])


@router.get("/sandboxes/{sandboxID}")
async def get(sandbox: SandboxId, request: Request, services: Given, principal: Reader) -> Answer:
    """What a sandbox is now."""
    view = services.fleet.owned(principal.tenant, sandbox)
    _ends(request).watch(principal.tenant.id, view.id)
    return _answer(_told(services, view))


@router.delete("/sandboxes/{sandboxID}")
async def kill(sandbox: SandboxId, request: Request, services: Given, principal: User) -> Answer:
    """Ends a sandbox, whatever its state; says how it ended."""
    ends, tenant = _ends(request), principal.tenant
    view = services.fleet.owned(tenant, sandbox)
    ends.watch(tenant.id, view.id)
    await services.fleet.kill(tenant, view.id)
    try:
        ended = await ends.wait(tenant.id, view.id, WAIT)
    except NotFound:
        ended = None  # it was paused, and had no machine that could end
    return _answer(ended or Ended(Exit(None, None, "it was asked for")))


@router.get("/sandboxes/{sandboxID}/end")
async def wait(sandbox: SandboxId, request: Request, principal: Reader) -> Answer:
    """Waits for a while for a sandbox to end, and says how it did."""
    return _answer(Waited(await _ends(request).wait(principal.tenant.id, sandbox, WAIT)))


@router.post("/sandboxes/{sandboxID}/calls/{call}")
async def call(
    sandbox: SandboxId,
    call: Annotated[str, Path(max_length=64)],
    request: Request,
    services: Given,
    principal: User,
    arguments: Annotated[dict[str, Any] | None, Body()] = None,
) -> Answer:
    """Has something done to a sandbox."""
    if call not in CALLS:
        raise NotFound(f"there is no call {call!r}; there are: {', '.join(CALLS)}.")
    target = Target(services, principal.tenant, services.fleet.owned(principal.tenant, sandbox).id)
    try:
        result = await CALLS[call](target, arguments or {})
    except (KeyError, msgspec.ValidationError) as error:
        raise InvalidState(f"the arguments of {call!r} do not fit: {error}.") from error
    if call == "fork":
        _adopt(request, target, result)
    return _answer(result)


@router.get("/snapshots")
async def snapshots(services: Given, principal: Reader) -> Answer:
    """The key's tenant's snapshots, the oldest first."""
    found = reversed(services.catalogue.all(principal.tenant.id, "snapshot"))
    return _answer([await snapshot_of(services, one) for one in found])


@router.delete("/snapshots/{snapshot}", status_code=204)
async def delete_snapshot(snapshot: Annotated[str, Path(max_length=200)], services: Given, principal: User) -> None:
    """Deletes a snapshot."""
    template = services.catalogue.owned(principal.tenant.id, snapshot)
    if template.kind != "snapshot":
        raise InvalidState(f"{snapshot!r} is a template, not a snapshot.")
    await services.fleet.discard(await services.catalogue.delete(template))


def _adopt(request: Request, target: Target, children: list[Any]) -> None:
    """Children live under their parent's lease."""
    leases, ends = _leases(request), _ends(request)
    lease = leases.lease_of(target.id)
    for child in children:
        if child.id is not None:
            ends.watch(target.tenant.id, child.id)
            if lease is not None:
                leases.bind(target.tenant, lease, child.id)


def _wish(wanted: SandboxRequest, services: Services, tenant: Tenant) -> Wish:
    ground = services.ground
    if wanted.isolation not in ("auto", ground.backend):
        raise CapabilityError(
            f"this server's sandboxes are isolated by {ground.backend!r}, not by {wanted.isolation!r}.", remedy="Leave `isolation` out."
        )
    return Wish(
        template=wanted.snapshot or BASE,
        timeout=wanted.lifetime,
        network=replace(rules_of(wanted.network.policy), connected=True) if wanted.network.enabled else NetworkRules(internet=False),
        metadata=wanted.metadata,
        env=wanted.env,
        resources=wanted.resources,
        source=None if wanted.snapshot else _image(wanted.image, services, tenant),
    )


def _image(image: str | None, services: Services, tenant: Tenant) -> Build:
    """What an image's name means on a server: nothing of the server's own files that its templates do not show."""
    if image in (None, "host", "debian"):
        return loose(Recipe(user="root"), image="debian" if image == "debian" else services.ground.image)
    assert image is not None
    reference = image.removeprefix(SCHEME)
    if reference != image:
        return services.catalogue.choose(tenant.id, reference).build
    base = Bases(services.catalogue, services.ground).find(tenant, image)
    assert isinstance(base, str), "only a template is found as anything else"
    return loose(Recipe(user="root"), image=base)


def _told(services: Services, view: SandboxView) -> RemoteSandbox:
    machine = services.fleet.machine(view.id)
    return RemoteSandbox(
        id=view.id,
        generation=machine.generation if machine else 0,
        state=view.state.shown,
        image=(machine.request.image if machine else None) or services.ground.image,
        backend=services.ground.backend,
        created=view.started,
        expires=view.end,
        snapshot=None,
        resources=view.resources,
        metadata=view.metadata,
        timings=machine.timings if machine else (),
        capabilities=machine.capabilities if machine else services.ground.capabilities,
        owner_pid=os.getpid(),
    )
