"""E2B's routes about templates: request, start and watch builds, list, change and delete templates."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from agentenv.errors import ConfigError, NotFound, QuotaExceeded
from agentenv.server.access import Tenant
from agentenv.server.catalogue import Build, Template, check_name, check_tag
from agentenv.server.control.answers import FAULTS
from agentenv.server.control.lists import Limit, Token
from agentenv.server.control.pages import NEXT_TOKEN, page
from agentenv.server.fleet import LogLine
from agentenv.server.services import Given, Reader, Services, User
from agentenv.server.templates import wire

router = APIRouter(tags=["templates"], responses=FAULTS)

TemplateId = Annotated[str, Path(alias="templateID", min_length=1, max_length=300, description="The id or name of a template.")]
BuildId = Annotated[str, Path(alias="buildID", min_length=1, max_length=64, description="The id of a build.")]
Hash = Annotated[str, Path(alias="hash", max_length=128, description="64 hexadecimal digits that stand for the files of a COPY.")]
MOST_LINES = 100


@router.post("/v3/templates", status_code=202)
async def request_build(body: wire.NewTemplate, services: Given, principal: User) -> wire.RequestedBuild:
    """Makes a build that waits for its steps, and the template where there is none of that name."""
    name, tags = body.names()
    for tag in tags:
        check_tag(tag)
    template = await obtain(services, principal.tenant, name)
    build = await services.builds.request(template, body.resources(), tags)
    names = [template.name] if template.name else []
    return wire.RequestedBuild(
        templateID=template.id, buildID=build.id, public=template.public, names=names, tags=list(tags), aliases=names
    )


@router.post("/v2/templates", status_code=202)
async def request_build_v2(body: wire.NewTemplate, services: Given, principal: User) -> wire.RequestedBuild:
    """The same, for clients of the second generation."""
    return await request_build(body, services, principal)


@router.post("/v2/templates/{templateID}/builds/{buildID}", status_code=202)
async def start_build(
    template_id: TemplateId,
    build_id: BuildId,
    body: wire.StartBuild,
    services: Given,
    principal: User,
) -> None:
    """Begins a build that waits; its files have to be uploaded."""
    template = services.catalogue.owned(principal.tenant.id, template_id)
    build = services.catalogue.build_of(template, build_id)
    await services.builds.start(principal.tenant, template, build, body.to_build())


@router.get("/templates/{templateID}/files/{hash}", status_code=201, response_model_exclude_none=True)
async def file_upload_link(
    template_id: TemplateId,
    files: Hash,
    services: Given,
    principal: User,
    request: Request,
) -> wire.FileUpload:
    """Whether the files of a COPY are here already, and a link that they can be uploaded to as a tar archive."""
    template = services.catalogue.owned(principal.tenant.id, template_id)
    uploads = services.builds.uploads
    expires, signature = uploads.sign(principal.tenant.id, template.id, files)
    link = request.url_for("upload_files", templateID=template.id, hash=files)
    url = str(link.include_query_params(tenant=principal.tenant.id, expires=expires, signature=signature))
    return wire.FileUpload(present=uploads.find(principal.tenant.id, files) is not None, url=url)


@router.put("/templates/{templateID}/files/{hash}/content", name="upload_files")
async def upload_files(
    template_id: TemplateId,
    files: Hash,
    tenant: Annotated[str, Query(max_length=64)],
    expires: Annotated[int, Query(ge=0, le=2**40)],
    signature: Annotated[str, Query(max_length=128)],
    services: Given,
    request: Request,
) -> None:
    """Takes files of a build. The link is the credential."""
    uploads = services.builds.uploads
    uploads.check(tenant, template_id, files, expires, signature)
    await uploads.receive(tenant, files, request.stream())


@router.get("/templates/{templateID}/builds/{buildID}/status", response_model_exclude_none=True)
async def build_status(
    template_id: TemplateId,
    build_id: BuildId,
    services: Given,
    principal: Reader,
    offset: Annotated[int, Query(alias="logsOffset", ge=0, le=10_000_000)] = 0,
    limit: Annotated[int, Query(ge=0, le=MOST_LINES)] = MOST_LINES,
    level: wire.Level = "debug",
) -> wire.BuildState:
    """How far a build is, with the lines of its log from `logsOffset` on."""
    template = services.catalogue.find(principal.tenant.id, template_id)
    _owned(template, principal.tenant)
    build = services.catalogue.build_of(template, build_id)
    # Read before the status is looked at: a build that is done has said all.
    lines = await services.fleet.logbook.read(build.id, limit=offset + limit, level=level)
    build = services.catalogue.build_of(template, build_id)
    shown = [wire.log_entry(line) for line in lines[offset:]]
    done = build.status in ("ready", "error") and len(lines) < offset + limit
    status = build.status if done or build.status == "waiting" else "building"
    reason = await _reason(services, build) if status == "error" else None
    return wire.BuildState(templateID=template.id, buildID=build.id, status=status, logEntries=shown, reason=reason)


@router.get("/templates/{templateID}/builds/{buildID}/logs", response_model_exclude_none=True)
async def build_logs(
    template_id: TemplateId,
    build_id: BuildId,
    services: Given,
    principal: Reader,
    cursor: Annotated[int | None, Query(ge=0, le=2**50, description="Unix milliseconds to begin at.")] = None,
    limit: Annotated[int, Query(ge=0, le=MOST_LINES)] = MOST_LINES,
    direction: Annotated[str, Query(pattern="^(forward|backward)$")] = "forward",
    level: wire.Level = "debug",
) -> wire.BuildLogs:
    """Lines of a build's log."""
    template = services.catalogue.find(principal.tenant.id, template_id)
    _owned(template, principal.tenant)
    build = services.catalogue.build_of(template, build_id)
    backward = direction == "backward"
    since, until = (None, cursor) if backward else (cursor, None)
    lines = await services.fleet.logbook.read(build.id, since=since, until=until, limit=limit, backward=backward, level=level)
    return wire.BuildLogs(logs=[wire.log_entry(line) for line in lines])


@router.get("/templates", response_model_exclude_none=True)
async def list_templates(services: Given, principal: Reader) -> list[wire.TemplateInfo]:
    """All templates of the tenant, the latest first."""
    return [_info(services, template) for template in services.catalogue.all(principal.tenant.id, "template")]


@router.get("/v2/templates", response_model_exclude_none=True)
async def list_templates_v2(
    services: Given, principal: Reader, response: Response, next_token: Token = None, limit: Limit = 100
) -> list[wire.TemplateInfo]:
    """The same in pages."""
    found = services.catalogue.all(principal.tenant.id, "template")
    items, following = page(found, lambda one: (one.created, one.id), token=next_token, limit=limit, descending=True)
    if following is not None:
        response.headers[NEXT_TOKEN] = following
    return [_info(services, template) for template in items]


@router.get("/default-templates", response_model_exclude_none=True)
async def list_default_templates(services: Given, principal: Reader) -> list[wire.TemplateInfo]:
    """The templates that come with the server."""
    return [_info(services, template) for template in services.catalogue.built_in()]


@router.get("/templates/aliases/{alias}")
async def find_alias(alias: Annotated[str, Path(min_length=1, max_length=300)], services: Given, principal: Reader) -> wire.AliasInfo:
    """The template that a name means."""
    found = services.catalogue.find(principal.tenant.id, alias)
    return wire.AliasInfo(templateID=found.id, public=found.public)


@router.get("/templates/{templateID}", response_model_exclude_none=True)
async def get_template(
    template_id: TemplateId,
    services: Given,
    principal: Reader,
    response: Response,
    next_token: Token = None,
    limit: Limit = 100,
) -> wire.TemplateWithBuilds:
    """A template with a page of its builds."""
    template = services.catalogue.find(principal.tenant.id, template_id)
    builds = services.catalogue.builds_of(template)
    shown, following = page(builds, lambda one: (one.created, one.id), token=next_token, limit=limit, descending=True)
    if following is not None:
        response.headers[NEXT_TOKEN] = following
    return wire.template_with_builds(template, builds, shown, services.ground)


@router.patch("/v2/templates/{templateID}")
async def update_template_v2(template_id: TemplateId, body: wire.TemplateUpdate, services: Given, principal: User) -> wire.UpdatedTemplate:
    """Makes a template public or private."""
    template = services.catalogue.owned(principal.tenant.id, template_id)
    changed = await services.catalogue.change(template, public=body.public)
    return wire.UpdatedTemplate(names=[changed.name] if changed.name else [])


@router.patch("/templates/{templateID}")
async def update_template(template_id: TemplateId, body: wire.TemplateUpdate, services: Given, principal: User) -> dict[str, str]:
    """The same, with an empty answer."""
    await update_template_v2(template_id, body, services, principal)
    return {}


@router.delete("/templates/{templateID}", status_code=204)
async def delete_template(template_id: TemplateId, services: Given, principal: User) -> None:
    """Deletes a template or a named snapshot with all its builds; sandboxes that were made of it go on."""
    template = services.catalogue.owned(principal.tenant.id, template_id)
    for build in services.catalogue.builds_of(template):
        await services.builds.cancel(build)
    await services.fleet.discard(await services.catalogue.delete(template))


def _info(services: Services, template: Template) -> wire.TemplateInfo:
    return wire.template_info(template, services.catalogue.builds_of(template), services.ground)


async def obtain(services: Services, tenant: Tenant, name: str | None) -> Template:
    """The tenant's template of that name or id, made where there is none; without a name, a new one.

    Raises `ConfigError` for what is no name, or a snapshot's; `QuotaExceeded`.
    """
    if name is None:
        return await _create(services, tenant, None)
    try:
        found = services.catalogue.owned(tenant.id, name)
    except NotFound:
        check_name(name)
        return await _create(services, tenant, name)
    if found.kind != "template":
        raise ConfigError(f"{name!r} is a snapshot, not a template", remedy="Choose another name.")
    return found


async def _create(services: Services, tenant: Tenant, name: str | None) -> Template:
    quota = tenant.quotas.templates
    if quota is not None and len(services.catalogue.all(tenant.id)) >= quota:
        raise QuotaExceeded(f"the quota of tenant {tenant.name!r} is {quota} templates.", remedy="Delete templates or snapshots.")
    return await services.catalogue.create(tenant.id, name=name)


def _owned(template: Template, tenant: Tenant) -> None:
    """What a build said is its owner's alone, also where its template is public."""
    if template.tenant != tenant.id:
        raise NotFound(f"there is no template {template.id!r} of yours.")


async def _reason(services: Services, build: Build) -> wire.BuildReason:
    errors: list[LogLine] = await services.fleet.logbook.read(build.id, limit=1, backward=True, level="error")
    step = errors[0].fields.get("step") if errors else None
    entries = [wire.log_entry(line) for line in errors]
    return wire.BuildReason(message=build.reason or "The build failed.", step=step or None, logEntries=entries)
