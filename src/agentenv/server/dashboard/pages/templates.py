"""Templates and snapshots, their builds, and what a build says as it runs."""

from __future__ import annotations

from dataclasses import dataclass

from nicegui import ui
from nicegui.events import ValueChangeEventArguments
from starlette.requests import Request

from agentenv.server.catalogue import Build, Catalogue, Template
from agentenv.server.dashboard.pages.frame import ROOT, Fragment, button, confirmed, every, frame, guarded
from agentenv.server.dashboard.pages.logs import LogView
from agentenv.server.dashboard.rendering import EMPTY, clock, size
from agentenv.server.dashboard.viewer import Viewer

EVERY = 1.0


@dataclass(frozen=True, slots=True)
class TemplateRow:
    """A template in the list; `status` is that of its latest build."""

    template: Template
    status: str
    builds: int


@dataclass(frozen=True, slots=True)
class BuildRow:
    """A build with the tags that mean it."""

    build: Build
    tags: tuple[str, ...]


@ui.page("/templates")
async def templates(request: Request) -> None:
    """All of them."""
    with frame(request, "Templates", "Templates") as viewer, ui.element("section").classes("card"):
        wanted = ""

        def values() -> dict[str, object]:
            return {"root": ROOT, "templates": _rows(viewer, wanted), "filtered": bool(wanted)}

        def search(event: ValueChangeEventArguments[str | None]) -> None:
            nonlocal wanted
            wanted = (event.value or "").strip().lower()
            told.show(**values())

        with ui.element("div").classes("line"):
            ui.html("<h2>Templates and snapshots</h2>", sanitize=False).classes("grow")
            ui.input(placeholder="Search   /", on_change=guarded(search)).props(
                'outlined dense clearable debounce=200 aria-label="Search templates"'
            ).classes("search")
        told = Fragment("templates.html", **values())
        every(EVERY, lambda: told.show(**values()))


@ui.page("/templates/{template}")
async def template(request: Request, template: str, build: str = "") -> None:
    """One of them with its builds; `build` chooses whose log is shown, by default the latest."""
    with frame(request, "Template", "Templates") as viewer:
        catalogue = viewer.services.catalogue
        found = catalogue.find(viewer.tenant.id, template)
        own = found.tenant == viewer.tenant.id
        with ui.element("div").classes("line"):
            ui.label(found.name or found.id[:8]).props("role=heading aria-level=1").classes("title")
            ui.label(found.id).classes("mono soft grow")
            if own and viewer.acts:
                button("Delete", lambda: _delete(viewer, found), kind="grave")
        with ui.element("section").classes("card"):
            Fragment("facts.html", facts=_facts(catalogue, found))
        # What a build of another tenant's public template said is that tenant's alone.
        if not own and found.tenant is not None:
            return
        builds = catalogue.builds_of(found)
        chosen = build if any(one.id == build for one in builds) else builds[0].id if builds else ""

        def values() -> dict[str, object]:
            return {"root": ROOT, "builds": _builds(catalogue, found), "chosen": chosen}

        with ui.element("section").classes("card"):
            ui.html("<h2>Builds</h2>", sanitize=False)
            told = Fragment("builds.html", **values())
        every(EVERY, lambda: told.show(**values()))
        if chosen:
            with ui.element("section").classes("card"):
                ui.label(f"Log of build {chosen[:8]}").props("role=heading aria-level=2").classes("subtitle")
                log = LogView(viewer.services.fleet.logbook, chosen)
            await log.update()
            every(EVERY, log.update)


async def _delete(viewer: Viewer, template: Template) -> None:
    if not await confirmed("Delete it with all its builds? Sandboxes that were made of it go on.", "Delete"):
        return
    with viewer.acting("delete a template", template.id) as principal:
        services = viewer.services
        found = services.catalogue.owned(principal.tenant.id, template.id)
        for build in services.catalogue.builds_of(found):
            await services.builds.cancel(build)
        await services.fleet.discard(await services.catalogue.delete(found))
    ui.navigate.to("/templates")


def _rows(viewer: Viewer, wanted: str) -> list[TemplateRow]:
    catalogue = viewer.services.catalogue
    rows = []
    for one in [*catalogue.all(viewer.tenant.id), *catalogue.built_in()]:
        if wanted in (one.name or "") or one.id.startswith(wanted):
            builds = catalogue.builds_of(one)
            rows.append(TemplateRow(one, builds[0].status if builds else "", len(builds)))
    return rows


def _builds(catalogue: Catalogue, template: Template) -> list[BuildRow]:
    now = catalogue.find(None, template.id)
    return [BuildRow(one, tuple(tag for tag, build in now.tags.items() if build == one.id)) for one in catalogue.builds_of(now)]


def _facts(catalogue: Catalogue, template: Template) -> list[tuple[str, str]]:
    builds = catalogue.builds_of(template)
    told = [
        ("Kind", template.kind),
        ("For", "everybody" if template.public else "this tenant"),
        ("Made", clock(template.created)),
        ("Used", f"{template.spawned:,} times" + (f", last {clock(template.last_spawned)}" if template.last_spawned else "")),
    ]
    if template.source:
        told.append(("Taken of", template.source))
    if builds:
        recipe = builds[0].recipe
        limits = recipe.resources
        told += [
            ("Limits", f"{limits.cpu or EMPTY} cores, {size(limits.memory)} memory, {size(limits.storage)} storage"),
            ("User", recipe.user),
            ("Directory", recipe.cwd or "the user's home"),
            ("Starts with", recipe.start_command or EMPTY),
            ("Ready when", recipe.ready_command or EMPTY),
        ]
    return told
