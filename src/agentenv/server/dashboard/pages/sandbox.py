"""One sandbox: what it is and uses, its processes, log, files, network and relatives, and a terminal in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nicegui import ui
from nicegui.events import ValueChangeEventArguments
from starlette.requests import Request

from agentenv.server.dashboard.content import running
from agentenv.server.dashboard.pages.actions import Actions
from agentenv.server.dashboard.pages.branching import Tree
from agentenv.server.dashboard.pages.browsing import Files
from agentenv.server.dashboard.pages.charts import UsageCharts
from agentenv.server.dashboard.pages.frame import Fragment, every, frame, guarded
from agentenv.server.dashboard.pages.logs import LogView
from agentenv.server.dashboard.pages.terminal import Terminal
from agentenv.server.dashboard.processes import processes
from agentenv.server.dashboard.rendering import EMPTY, clock, size
from agentenv.server.dashboard.viewer import Viewer
from agentenv.server.fleet import SandboxView
from agentenv.server.fleet.archive import Sample

EVERY = 1.0
"""Seconds between two looks at its state and what it uses."""
SLOWLY = 2.0
"""Seconds between two looks at what takes longer to find out."""


@ui.page("/sandboxes/{sandbox}")
async def sandbox(request: Request, sandbox: str) -> None:
    """The page."""
    with frame(request, f"Sandbox {sandbox[:8]}", "Sandboxes") as viewer:
        view = viewer.services.fleet.owned(viewer.tenant, sandbox)
        await SandboxPage(viewer, view).build()


class SandboxPage:
    """What is on it; each tab is made when it is first opened."""

    def __init__(self, viewer: Viewer, view: SandboxView) -> None:
        self._viewer = viewer
        self._fleet = viewer.services.fleet
        self._view = view
        self._tabs: Mapping[str, Callable[[], Awaitable[None]]] = {
            "Use": self._use,
            "Processes": self._processes,
            "Log": self._log,
            "Files": self._files,
            "Network": self._network,
            "Snapshots": self._snapshots,
        } | ({"Terminal": self._terminal} if viewer.acts else {})
        self._panels: dict[str, ui.tab_panel] = {}
        self._built: set[str] = set()

    async def build(self) -> None:
        """Everything that is to be seen at first."""
        with ui.element("div").classes("line"):
            ui.html(f"<h1>{self._title()}</h1>", sanitize=True)
            self._state = ui.label()
            ui.label(self._view.id).classes("mono soft grow")
        self._actions = Actions(self._viewer, self._view.id) if self._viewer.acts else None
        with ui.element("section").classes("card"):
            self._facts = Fragment("facts.html", facts=_facts(self._view))
        with ui.tabs(on_change=guarded(self._opened)).props(
            'dense align=left no-caps outside-arrows mobile-arrows aria-label="About this sandbox"'
        ) as tabs:
            for name in self._tabs:
                ui.tab(name)
        with ui.tab_panels(tabs, value="Use", animated=False).classes("w-full"):
            for name in self._tabs:
                self._panels[name] = ui.tab_panel(name)
        await self._fill("Use")
        self._show(self._view)
        every(EVERY, self._update)

    def _title(self) -> str:
        return self._view.alias or "sandbox"

    def _update(self) -> None:
        self._show(self._fleet.owned(self._viewer.tenant, self._view.id))

    def _show(self, view: SandboxView) -> None:
        self._view = view
        self._state.set_text(view.state.value)
        self._state.classes(replace=f"state {view.state.value}")
        self._facts.show(facts=_facts(view))
        if self._actions is not None:
            self._actions.show(view)

    async def _opened(self, event: ValueChangeEventArguments[Any]) -> None:
        await self._fill(str(event.value))

    async def _fill(self, name: str) -> None:
        if name in self._built:
            return
        self._built.add(name)
        with self._panels[name]:
            await self._tabs[name]()

    async def _use(self) -> None:
        keep = self._viewer.services.settings.history.samples
        charts = UsageCharts(await self._samples(), keep=keep)

        async def update() -> None:
            charts.show(await self._samples())

        every(EVERY, update)

    async def _samples(self) -> list[Sample]:
        return await self._fleet.samples(self._viewer.tenant, self._view.id)

    async def _processes(self) -> None:
        with ui.element("section").classes("card"):
            told = Fragment("processes.html", processes=[])

        async def update() -> None:
            if self._view.state == "running":
                told.show(processes=await processes(await running(self._viewer, self._view.id)))

        await update()
        every(SLOWLY, update)

    async def _log(self) -> None:
        with ui.element("section").classes("card"):
            log = LogView(self._fleet.logbook, self._view.id)
        await log.update()
        every(EVERY, log.update)

    async def _files(self) -> None:
        files = Files(self._viewer, self._view.id, self._view.cwd or "/")
        files.offer()
        await files.go(self._view.cwd or "/")

    async def _network(self) -> None:
        async def values() -> dict[str, object]:
            denials = await self._fleet.denials(self._viewer.tenant, self._view.id)
            return {"rules": self._view.network, "denials": denials[::-1]}

        told = Fragment("network.html", **await values())

        async def update() -> None:
            told.show(**await values())

        every(SLOWLY, update)

    async def _snapshots(self) -> None:
        tree = Tree(self._viewer, self._view.id)
        await tree.update()
        every(SLOWLY, tree.update)

    async def _terminal(self) -> None:
        await Terminal(self._viewer, self._view).start()


def _facts(view: SandboxView) -> list[tuple[str, str]]:
    limits = view.resources
    told = [
        (
            "Limits",
            f"{limits.cpu or EMPTY} cores, {size(limits.memory)} memory, {size(limits.storage)} storage, {limits.pids or EMPTY} processes",
        ),
        ("Started", clock(view.started)),
        ("Ends", "not by itself" if view.end is None else f"{clock(round(view.end))}, then {view.lifecycle.on_timeout}"),
        ("User", view.user),
    ]
    if view.parent:
        told.append(("Forked from", view.parent))
    if view.metadata:
        told.append(("Metadata", ", ".join(f"{key}={value}" for key, value in view.metadata.items())))
    return told
