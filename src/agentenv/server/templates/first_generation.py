"""E2B's first generation of builds: `POST /templates` with a Dockerfile, then `POST /templates/{id}/builds/{id}` (E2B's openapi.yml).

Its clients build the Dockerfile themselves and push the image to a registry of E2B's between the two requests. There is none here: the
server builds the Dockerfile that the first request carries. The files beside it come only inside such an image, so that a Dockerfile that
copies some of them is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, cast

from fastapi import APIRouter, Request
from pydantic import Field

from agentenv.errors import InvalidState, Unsupported
from agentenv.server.catalogue import DEFAULT_TAG, Build, Catalogue, Template
from agentenv.server.control.answers import FAULTS
from agentenv.server.services import Given, Services, User
from agentenv.server.templates import wire
from agentenv.server.templates.routes import BuildId, TemplateId, obtain
from agentenv.templates.dockerfile import parse
from agentenv.templates.plan import Copy
from agentenv.templates.steps import is_remote

router = APIRouter(tags=["templates"], responses=FAULTS)


class NewTemplate(wire.Body):
    """A wished-for build of a Dockerfile."""

    dockerfile: Annotated[str, Field(min_length=1, max_length=1 << 20)]
    alias: wire.Name | None = None
    """The template's name; without one it is called by its id."""
    teamID: str | None = None
    startCmd: Annotated[str, Field(max_length=1 << 16)] | None = None
    readyCmd: Annotated[str, Field(max_length=1 << 16)] | None = None
    cpuCount: wire.CpuCount | None = None
    memoryMB: wire.MemoryMB | None = None


@dataclass(slots=True)
class Waiting:
    """What builds are to do that were requested and are not begun yet. Like those, it ends with the server."""

    catalogue: Catalogue
    _bodies: dict[str, tuple[Build, dict[str, Any]]] = field(default_factory=dict)

    def add(self, build: Build, body: dict[str, Any]) -> None:
        """Keeps it, and forgets that of builds that are gone."""
        self._bodies = {one.id: (one, kept) for one, kept in self._bodies.values() if self.catalogue.known_build(one.id) is not None}
        self._bodies[build.id] = (build, body)

    def of(self, build: Build) -> dict[str, Any]:
        """What `build` is to do. Raises `InvalidState` for one that was not requested so."""
        if build.id not in self._bodies:
            raise InvalidState(f"build {build.id} was started before, or not requested with a Dockerfile.", remedy="Request another build.")
        return self._bodies[build.id][1]

    def remove(self, build: Build) -> None:
        """It is begun."""
        self._bodies.pop(build.id, None)


@router.post("/templates", status_code=202)
async def request_build(body: NewTemplate, services: Given, principal: User, request: Request) -> wire.TemplateInfo:
    """Makes a build of a Dockerfile that waits to be started, and the template where there is none of that name."""
    _require_nothing_beside(body.dockerfile)
    return await _requested(request, services, await obtain(services, principal.tenant, body.alias), body)


@router.post("/templates/{templateID}", status_code=202)
async def request_rebuild(
    template_id: TemplateId, body: NewTemplate, services: Given, principal: User, request: Request
) -> wire.TemplateInfo:
    """The same for a template that there is."""
    template = services.catalogue.owned(principal.tenant.id, template_id)
    _require_nothing_beside(body.dockerfile)
    return await _requested(request, services, await obtain(services, principal.tenant, template.id), body)


@router.post("/templates/{templateID}/builds/{buildID}", status_code=202)
async def start_build(template_id: TemplateId, build_id: BuildId, services: Given, principal: User, request: Request) -> None:
    """Begins a build that was requested with a Dockerfile."""
    template = services.catalogue.owned(principal.tenant.id, template_id)
    build = services.catalogue.build_of(template, build_id)
    waiting = _waiting(request)
    await services.builds.start(principal.tenant, template, build, waiting.of(build))
    waiting.remove(build)


def _waiting(request: Request) -> Waiting:
    return cast(Waiting, request.app.state.first_generation)


async def _requested(request: Request, services: Services, template: Template, body: NewTemplate) -> wire.TemplateInfo:
    build = await services.builds.request(template, wire.resources_of(body.cpuCount, body.memoryMB), (DEFAULT_TAG,))
    _waiting(request).add(build, {"dockerfile": body.dockerfile, "startCmd": body.startCmd, "readyCmd": body.readyCmd})
    return wire.template_info(template, services.catalogue.builds_of(template), services.ground)


def _require_nothing_beside(dockerfile: str) -> None:
    """Raises `ConfigError` for what is no Dockerfile, `Unsupported` for one that copies files that lie beside it."""
    for stage in parse(dockerfile).stages:
        for step in stage.steps:
            if isinstance(step, Copy) and step.source is None and any(not (step.add and is_remote(word)) for word in step.sources):
                raise Unsupported(
                    f"Dockerfile:{step.line}: `{step.text}` copies files that a client of the first generation sends only inside an image "
                    "that it pushes to E2B's registry, and this server has none.",
                    remedy="Build with `agentenv build`, or with `Template.build` of an e2b 2 client; both upload the files.",
                )
