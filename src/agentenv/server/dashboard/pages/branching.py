"""The tree of a sandbox's snapshots and relatives, with what can be done at each of its places."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui

from agentenv.server.dashboard.lineage import Branch, lineage
from agentenv.server.dashboard.pages.actions import FORK_TIMEOUT
from agentenv.server.dashboard.pages.frame import ROOT, button, confirmed
from agentenv.server.dashboard.rendering import clock, short
from agentenv.server.dashboard.viewer import Viewer
from agentenv.server.fleet import Wish
from agentenv.server.nodeapi.calls import CALLS, Target


class Tree:
    """Drawn anew when it has changed."""

    def __init__(self, viewer: Viewer, sandbox: str) -> None:
        self._viewer = viewer
        self._id = sandbox
        self._shown: list[Branch] = []
        self._place = ui.element("section").classes("card")

    async def update(self) -> None:
        """Looks whether anything is different. Raises `NotFound` when the sandbox has ended."""
        view = self._viewer.services.fleet.owned(self._viewer.tenant, self._id)
        found = await lineage(self._viewer.services, self._viewer.tenant, view)
        if found == self._shown:
            return
        self._shown = found
        self._place.clear()
        with self._place:
            ui.html("<h2>Snapshots and forks</h2>", sanitize=False)
            if len(found) == 1 and not found[0].children:
                ui.html(
                    '<p class="empty">There is no snapshot of it yet. “Snapshot” above takes one, “Fork” starts copies of it.</p>',
                    sanitize=False,
                )
            self._draw(found)

    def _draw(self, branches: Sequence[Branch]) -> None:
        with ui.element("ul").classes("tree"):
            for branch in branches:
                with ui.element("li"):
                    with ui.element("div").classes("line"):
                        self._line(branch)
                    if branch.children:
                        self._draw(branch.children)

    def _line(self, branch: Branch) -> None:
        if branch.kind == "sandbox":
            ui.label(branch.state).classes(f"state {branch.state}")
            name = f"{branch.label} {short(branch.id)}"
            if branch.current:
                ui.label(f"{name} (this one)")
            else:
                ui.link(name, f"{ROOT}/sandboxes/{branch.id}")
        else:
            ui.label("◆").classes("soft")
            ui.label(branch.label)
            ui.label("memory and files" if branch.memory else "files").classes("soft")
        ui.label(clock(branch.created)).classes("soft grow")
        if branch.kind == "snapshot" and self._viewer.acts:
            button("Roll back to it", lambda: self._roll_back(branch), kind="grave")
            button("Start from it", lambda: self._start(branch))

    async def _roll_back(self, branch: Branch) -> None:
        if not await confirmed(f"Put this sandbox back to {branch.label}? What it has done since is lost.", "Roll back"):
            return
        with self._viewer.acting("roll back", self._id) as principal:
            await CALLS["rollback"](Target(self._viewer.services, principal.tenant, self._id), {"snapshot": branch.id})
        ui.notify(f"It is what it was at {branch.label}.", type="positive")

    async def _start(self, branch: Branch) -> None:
        with self._viewer.acting("start from a snapshot", branch.id) as principal:
            fleet = self._viewer.services.fleet
            view = fleet.owned(principal.tenant, self._id)
            born = await fleet.create(principal.tenant, Wish(branch.id, timeout=view.timeout or FORK_TIMEOUT, network=view.network))
        ui.navigate.to(f"/sandboxes/{born.id}")
