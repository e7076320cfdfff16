"""Routes that list sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from agentenv.errors import ConfigError
from agentenv.server.control import wire
from agentenv.server.control.answers import FAULTS
from agentenv.server.control.pages import NEXT_TOKEN, metadata_filter, page
from agentenv.server.fleet import SandboxView
from agentenv.server.services import Given, Reader

router = APIRouter(tags=["sandboxes"], responses=FAULTS)

Limit = Annotated[int, Query(ge=1, le=100, description="Items on a page.")]
Token = Annotated[str | None, Query(alias="nextToken", description=f"The {NEXT_TOKEN} of the page before.")]
Filter = Annotated[str | None, Query(description="Only sandboxes with these metadata: key=value&key=value.")]
STATES = ("running", "paused")


@router.get("/sandboxes", response_model_exclude_none=True)
async def list_running(services: Given, principal: Reader, metadata: Filter = None) -> list[wire.ListedSandbox]:
    """All running sandboxes, the latest first."""
    wanted = metadata_filter(metadata)
    views = services.fleet.all(principal.tenant)
    return [wire.listed(view) for view in views if view.state.shown == "running" and _has(view.metadata, wanted)]


@router.get("/v2/sandboxes", response_model_exclude_none=True)
async def list_all(
    services: Given,
    principal: Reader,
    response: Response,
    metadata: Filter = None,
    state: Annotated[list[str] | None, Query(description="running, paused, or both; separated by commas.")] = None,
    order: Literal["asc", "desc"] = "desc",
    started_after: Annotated[datetime | None, Query(alias="startedAfter")] = None,
    template: Annotated[str | None, Query(description="The id or name of a template.")] = None,
    next_token: Token = None,
    limit: Limit = 100,
) -> list[wire.ListedSandbox]:
    """A page of sandboxes."""
    wanted, states = metadata_filter(metadata), _states(state)
    after = started_after.timestamp() if started_after else None
    matching = [
        view
        for view in services.fleet.all(principal.tenant)
        if _has(view.metadata, wanted)
        and (after is None or view.started >= after)
        and (template is None or template in (view.template, view.alias))
    ]
    chosen = [view for view in matching if view.state.shown in states]
    if "running" in states:
        response.headers["x-total-running"] = str(sum(view.state.shown == "running" for view in matching))
    items, following = page(chosen, _position, token=next_token, limit=limit, descending=order == "desc")
    if following is not None:
        response.headers[NEXT_TOKEN] = following
    return [wire.listed(view) for view in items]


def _position(view: SandboxView) -> tuple[float, str]:
    return view.started, view.id


def _has(metadata: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(metadata.get(name) == value for name, value in wanted.items())


def _states(given: list[str] | None) -> list[str]:
    found = [name for part in given or STATES for name in part.split(",")]
    for name in found:
        if name not in STATES:
            raise ConfigError(f"{name!r} is no state", key="state", remedy=f"There are {' and '.join(STATES)}.")
    return found
