"""E2B's routes about tags: names for builds within a template."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from agentenv.errors import NotFound
from agentenv.server.control.answers import FAULTS
from agentenv.server.services import Given, Reader, User
from agentenv.server.templates import wire

router = APIRouter(tags=["templates"], responses=FAULTS)


@router.post("/templates/tags", status_code=201)
async def assign_tags(body: wire.AssignTags, services: Given, principal: User) -> wire.AssignedTags:
    """Lets tags mean the build that `target` means now."""
    template = services.catalogue.owned(principal.tenant.id, body.target)
    build = services.catalogue.choose(principal.tenant.id, body.target).build
    await services.catalogue.tag(template, dict.fromkeys(body.tags, build.id))
    return wire.AssignedTags(tags=body.tags, buildID=build.id)


@router.delete("/templates/tags", status_code=204)
async def remove_tags(body: wire.RemoveTags, services: Given, principal: User) -> None:
    """Lets tags mean nothing any more; their builds stay."""
    template = services.catalogue.owned(principal.tenant.id, body.name)
    await services.catalogue.untag(template, tuple(dict.fromkeys(body.tags)))


@router.get("/templates/{templateID}/tags")
async def list_tags(template_id: Annotated[str, Path(alias="templateID")], services: Given, principal: Reader) -> list[wire.TagInfo]:
    """The tags of a template."""
    template = services.catalogue.find(principal.tenant.id, template_id)
    if template.tenant not in (principal.tenant.id, None):
        raise NotFound(f"there is no template {template_id!r} of yours.")
    return [wire.tag_info(tag, services.catalogue.build_of(template, build)) for tag, build in sorted(template.tags.items())]
