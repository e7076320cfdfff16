"""The first page: what there is, what is given, and all sandboxes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

from nicegui import ui
from nicegui.events import GenericEventArguments, ValueChangeEventArguments
from starlette.requests import Request

from agentenv.server.dashboard import machine
from agentenv.server.dashboard.listing import Page, Query, Shown, SortBy, page_of, turned
from agentenv.server.dashboard.pages.frame import ROOT, Fragment, button, every, frame, guarded
from agentenv.server.dashboard.viewer import Viewer

ROWS_EVERY = 0.5
"""Seconds between two looks whether a sandbox has changed."""
REST_EVERY = 2.0
"""Seconds between two looks at everything else."""

COLUMNS = (
    ("name", "Sandbox", "left"),
    ("state", "State", "left"),
    ("template", "Template", "left"),
    ("cpu", "Cores", "right"),
    ("memory", "Memory", "right"),
    ("processes", "Processes", "right"),
    ("started", "Started", "right"),
    ("ends", "Ends", "right"),
    ("metadata", "Metadata", "left"),
)
NOT_ON_PHONES = frozenset({"cpu", "processes", "started", "ends", "metadata", "template"})

EMPTY = '<p class="empty">There is no sandbox. <code>agentenv create --server URL</code> starts one.</p>'
NO_MATCH = '<p class="empty">No sandbox fits this search.</p>'


@ui.page("/")
async def overview(request: Request) -> None:
    """The page."""
    with frame(request, "Sandboxes", "Sandboxes") as viewer:
        if viewer.principal.oversees:
            await _server(viewer)
        else:
            _tenant(viewer)
        SandboxTable(viewer)
        with ui.element("div").classes("two" if viewer.principal.oversees else ""):
            await _events(viewer)
            if viewer.principal.oversees:
                _latencies(viewer)


async def _server(viewer: Viewer) -> None:
    async def show() -> dict[str, object]:
        return {"shares": await machine.capacity(viewer.services)}

    with _card(f"This server ({viewer.services.ground.backend})"):
        fragment = Fragment("capacity.html", **await show())

    async def update() -> None:
        fragment.show(**await show())

    every(REST_EVERY, update)


def _tenant(viewer: Viewer) -> None:
    def values() -> dict[str, object]:
        return {"shares": machine.quotas(viewer.services, viewer.tenant)}

    _block("What you have", "capacity.html", values)


def _latencies(viewer: Viewer) -> None:
    _block("Starts, in milliseconds", "latency.html", lambda: {"stages": machine.latencies(viewer.services)})


async def _events(viewer: Viewer) -> None:
    async def values() -> dict[str, object]:
        return {"root": ROOT, "events": await viewer.services.fleet.logbook.recent(viewer.tenant.id, 12)}

    with _card("What happened lately"):
        fragment = Fragment("events.html", **await values())

    async def update() -> None:
        fragment.show(**await values())

    every(REST_EVERY, update)


def _block(title: str, template: str, values: Callable[[], dict[str, object]]) -> None:
    with _card(title):
        fragment = Fragment(template, **values())
    every(REST_EVERY, lambda: fragment.show(**values()))


def _card(title: str) -> ui.element:
    card = ui.element("section").classes("card")
    with card:
        ui.html(f"<h2>{title}</h2>", sanitize=False)
    return card


class SandboxTable:
    """The sandboxes of the viewer's tenant, a page at a time."""

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        self._query = Query()
        self._pulse, self._again = 0, 0.0
        self._page = self._look()
        with ui.element("section").classes("card"):
            self._controls()
            self._nothing = ui.html(sanitize=False)
            self._table = self._make_table()
            with ui.element("nav").classes("line").props('aria-label="Pages"'):
                self._told = ui.label().classes("soft grow")
                self._before = button("Previous", lambda: self._turn(-1))
                self._after = button("Next", lambda: self._turn(1))
        self._show(self._page)
        every(ROWS_EVERY, self._update)

    def _controls(self) -> None:
        with ui.element("div").classes("line"):
            ui.html("<h2>Sandboxes</h2>", sanitize=False)
            self._counts = ui.label().classes("soft grow")
            self._segments: dict[str, ui.button] = {}
            with ui.element("div").classes("seg").props('role=group aria-label="State"'):
                for name in get_args(Shown):
                    self._segments[name] = ui.button(name, on_click=guarded(lambda name=name: self._ask(state=name)), color=None).props(
                        "flat no-caps"
                    )
            ui.input(placeholder="Search   /", on_change=guarded(self._search)).props(
                'outlined dense clearable debounce=200 aria-label="Search sandboxes"'
            ).classes("search")

    def _make_table(self) -> ui.table:
        table = ui.table(
            columns=[
                {
                    "name": name,
                    "label": label,
                    "field": name,
                    "align": align,
                    "sortable": name not in ("metadata",),
                    "classes": "wide" if name in NOT_ON_PHONES else "",
                    "headerClasses": "wide" if name in NOT_ON_PHONES else "",
                }
                for name, label, align in COLUMNS
            ],
            rows=[],
            row_key="id",
            pagination={"rowsPerPage": 0, "sortBy": "started", "descending": True, "rowsNumber": 1},
        ).props('flat dense hide-pagination binary-state-sort :rows-per-page-options="[0]"')
        table.classes("sandboxes")
        table.add_slot(
            "body-cell-name",
            f'<q-td :props="props"><a class="mono" :href="`{ROOT}/sandboxes/${{props.row.id}}`">{{{{ props.value }}}}</a></q-td>',
        )
        table.add_slot("body-cell-state", '<q-td :props="props"><span :class="`state ${props.value}`">{{ props.value }}</span></q-td>')
        table.on("request", guarded(self._sort))
        return table

    def _search(self, event: ValueChangeEventArguments[str | None]) -> None:
        self._ask(text=event.value or "")

    def _sort(self, event: GenericEventArguments) -> None:
        wanted = event.args["pagination"]
        name = {"name": "id"}.get(wanted["sortBy"], wanted["sortBy"])
        chosen: SortBy = name if name in get_args(SortBy) else "started"
        self._table.pagination = self._table.pagination | {"sortBy": wanted["sortBy"], "descending": wanted["descending"]}
        self._ask(sort=chosen, descending=bool(wanted["descending"]))

    def _ask(self, **changes: object) -> None:
        self._query = replace(self._query, page=0, **changes)  # type: ignore[arg-type]
        self._show(self._look())

    def _turn(self, by: int) -> None:
        self._query = turned(self._query, by, self._page)
        self._show(self._look())

    def _update(self) -> None:
        pulse = self._viewer.services.fleet.pulse(self._viewer.tenant)
        # What they use changes without one of them changing; that is looked at more seldom.
        if pulse == self._pulse and time.monotonic() < self._again:
            return
        self._pulse, self._again = pulse, time.monotonic() + REST_EVERY
        page = self._look()
        if page != self._page:
            self._show(page)

    def _look(self) -> Page:
        return page_of(self._viewer.services.fleet, self._viewer.tenant, self._query)

    def _show(self, page: Page) -> None:
        self._page = page
        if self._table.rows != list(page.rows):
            self._table.rows = list(page.rows)
        self._table.set_visibility(bool(page.rows))
        self._nothing.set_content("" if page.rows else NO_MATCH if page.total else EMPTY)
        self._counts.set_text(f"{page.running:,} running, {page.paused:,} paused")
        self._told.set_text(f"{page.first:,} to {page.last:,} of {page.matching:,}" if page.rows else "")
        self._before.set_enabled(page.first > 1)
        self._after.set_enabled(page.has_more)
        for name, segment in self._segments.items():
            segment.props(f"aria-pressed={str(name == self._query.state).lower()}")
