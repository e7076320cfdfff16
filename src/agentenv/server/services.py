"""What every part of the server is given. A part never makes or looks up these itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader
from starlette.datastructures import Headers

from agentenv.errors import Forbidden, InfrastructureError
from agentenv.images.held import Held, claim
from agentenv.server.access import Access, Principal, Quotas, Role
from agentenv.server.building import TemplateBuilds
from agentenv.server.catalogue import Catalogue
from agentenv.server.database import Database
from agentenv.server.fleet import Fleet
from agentenv.server.fleet.ground import Ground, survey
from agentenv.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Services:
    """The server's inside. `home` is its AGENTENV_HOME, `directory` its own part of it."""

    settings: ServerSettings
    home: Path
    directory: Path
    ground: Ground
    database: Database
    access: Access
    catalogue: Catalogue
    fleet: Fleet
    builds: TemplateBuilds
    closing: AsyncExitStack
    """What parts of the server have opened: closed first."""


@asynccontextmanager
async def open_services(settings: ServerSettings, home: Path, *, given_key: str | None = None) -> AsyncIterator[Services]:
    """Opens everything in order, and closes it in the reverse one. `given_key` presets the first API key.

    Raises `ConfigError`, `BackendUnavailable` and other `InfrastructureError`.
    """
    directory = home / "server"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        stack.enter_context(_alone(directory))
        ground = await survey(settings.sandboxes)
        database = await Database.open(settings.database, directory)
        stack.push_async_callback(database.close)
        await stack.enter_async_context(database.alone())
        access = await Access.open(database, directory, given_key=given_key, quotas=Quotas.of(settings.quotas))
        stack.push_async_callback(access.close)
        catalogue = await Catalogue.open(database, base_image=ground.image)
        stack.push_async_callback(catalogue.write_counts)
        fleet = await Fleet.open(settings, home, ground, database, access, catalogue)
        stack.push_async_callback(fleet.close)
        builds = await TemplateBuilds.open(fleet.node, ground, catalogue, fleet.logbook, directory)
        stack.push_async_callback(builds.close)
        closing = await stack.enter_async_context(AsyncExitStack())
        yield Services(settings, home, directory, ground, database, access, catalogue, fleet, builds, closing)


def _alone(directory: Path) -> Held:
    """The right to be the server of that directory, which the kernel takes back at the process's end."""
    held = claim(directory)
    if held is None:
        raise InfrastructureError(
            f"another server uses {directory}.", remedy="End it, or set AGENTENV_HOME to another directory for this one."
        )
    return held


def services_of(request: Request) -> Services:
    """The services of the application that a request is for."""
    return cast(Services, request.app.state.services)


API_KEY = APIKeyHeader(name="X-API-Key", auto_error=False, description="An API key; `Authorization: Bearer KEY` serves as well.")
"""For the OpenAPI document only: what is sent is looked at by `Access.authenticate`."""


async def authenticated(request: Request, _: Annotated[str | None, Security(API_KEY)] = None) -> Principal:
    """Who asks, for a route that any role may use: `principal: Reader`. Raises `Unauthenticated`."""
    principal = services_of(request).access.authenticate(Headers(raw=request.headers.raw))
    request.state.principal = principal
    return principal


async def user(principal: Annotated[Principal, Depends(authenticated)]) -> Principal:
    """Who asks, for a route that changes something: `principal: User`. Raises `Forbidden` for a read-only key."""
    principal.require(Role.USER)
    return principal


async def administrator(principal: Annotated[Principal, Depends(authenticated)]) -> Principal:
    """Who asks, for a route about a tenant's keys: `principal: Administrator`."""
    principal.require(Role.ADMIN)
    return principal


async def operator(principal: Annotated[Principal, Depends(authenticated)]) -> Principal:
    """Who asks, for a route about the whole server: `principal: Operator`."""
    principal.require_operator()
    return principal


async def overseer(principal: Annotated[Principal, Depends(authenticated)]) -> Principal:
    """Who asks, for a route that only looks at the whole server: `principal: Overseer`."""
    if not principal.oversees:
        raise Forbidden("this is for the operator of the server.", remedy="Use a key of the operator's tenant.")
    return principal


async def given(request: Request) -> Services:
    """The services, for a route: `services: Given`. Like all of these a coroutine, since FastAPI runs plain functions in threads."""
    return services_of(request)


Given = Annotated[Services, Depends(given)]
Reader = Annotated[Principal, Depends(authenticated)]
User = Annotated[Principal, Depends(user)]
Administrator = Annotated[Principal, Depends(administrator)]
Overseer = Annotated[Principal, Depends(overseer)]
Operator = Annotated[Principal, Depends(operator)]
