"""What can be done with a sandbox, as buttons. Whoever may only read gets none, and would be refused."""

from __future__ import annotations

from nicegui import ui

from agentenv.errors import AgentEnvError, ConfigError
from agentenv.server.dashboard.pages.frame import button, confirmed
from agentenv.server.dashboard.viewer import Viewer
from agentenv.server.fleet import SandboxView, State
from agentenv.units import parse_duration

FORK_TIMEOUT = 3600.0
"""Seconds that a fork lives which is made with a button and whose source has no time to live."""


class Actions:
    """The buttons of one sandbox."""

    def __init__(self, viewer: Viewer, sandbox: str) -> None:
        self._viewer = viewer
        self._fleet = viewer.services.fleet
        self._id = sandbox
        with ui.element("div").classes("line actions"):
            self._pause = button("Pause", self._pausing)
            self._resume = button("Resume", self._resuming)
            button("Fork", self._forking)
            button("Snapshot", self._keeping)
            button("Set timeout", self._timing)
            button("Kill", self._killing, kind="grave")

    def show(self, view: SandboxView) -> None:
        """Shows what fits its state."""
        paused = view.state in (State.PAUSED, State.RESUMING)
        self._pause.set_visibility(not paused)
        self._resume.set_visibility(paused)

    async def _pausing(self) -> None:
        with self._viewer.acting("pause", self._id) as principal:
            await self._fleet.pause(principal.tenant, self._id, reason="the dashboard asked for it")

    async def _resuming(self) -> None:
        with self._viewer.acting("resume", self._id) as principal:
            view = self._fleet.owned(principal.tenant, self._id)
            await self._fleet.resume(principal.tenant, self._id, view.timeout)

    async def _killing(self) -> None:
        if await confirmed("End this sandbox? Its files and processes are lost.", "Kill it"):
            with self._viewer.acting("kill", self._id) as principal:
                await self._fleet.kill(principal.tenant, self._id, reason="the dashboard asked for it")
            ui.navigate.to("/")

    async def _forking(self) -> None:
        answer = await asked("How many forks?", "1", "Fork")
        if answer is None:
            return
        if not answer.isdecimal() or not 1 <= int(answer) <= 100:
            raise ConfigError(f"{answer!r} is no number of forks", remedy="Use 1 to 100.")
        with self._viewer.acting("fork", self._id) as principal:
            view = self._fleet.owned(principal.tenant, self._id)
            born = await self._fleet.fork(principal.tenant, self._id, int(answer), view.timeout or FORK_TIMEOUT)
        failed = [one for one in born if isinstance(one, AgentEnvError)]
        ui.notify(
            f"{len(born) - len(failed)} of {len(born)} forks run." + (f" {failed[0]}" if failed else ""),
            type="warning" if failed else "positive",
        )

    async def _keeping(self) -> None:
        answer = await asked("A name for the snapshot (may be left empty)", "", "Take it")
        if answer is not None:
            with self._viewer.acting("snapshot", self._id) as principal:
                kept = await self._fleet.snapshot(principal.tenant, self._id, answer or None)
            ui.notify(f"Snapshot {kept.template.name or kept.template.id} is kept.", type="positive")

    async def _timing(self) -> None:
        answer = await asked("It ends after (such as 30m or 2h)", "1h", "Set")
        if answer is None:
            return
        try:
            seconds = parse_duration(answer)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        with self._viewer.acting("set timeout", self._id) as principal:
            self._fleet.set_timeout(principal.tenant, self._id, seconds)


async def asked(question: str, default: str, action: str) -> str | None:
    """What somebody answers; None when they think better of it."""
    with ui.dialog() as dialog, ui.card():
        field = ui.input(question, value=default).props("outlined dense autofocus").classes("answer")
        field.on("keydown.enter", lambda: dialog.submit(field.value or ""))
        with ui.element("div").classes("line"):
            ui.button(action, on_click=lambda: dialog.submit(field.value or ""), color=None).props("flat no-caps").classes("act main")
            ui.button("Cancel", on_click=dialog.close, color=None).props("flat no-caps").classes("act")
    answer = await dialog
    dialog.delete()
    return answer if isinstance(answer, str) else None
