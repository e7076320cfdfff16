"""Training runs: all of them, one with its curves as they grow, and several side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui
from starlette.requests import Request

from agentenv.errors import NotFound
from agentenv.monitoring.lines import LineFollower
from agentenv.monitoring.run_dir import RunDirectory
from agentenv.monitoring.training_monitor import summarise
from agentenv.server.dashboard.pages.charts import Chart
from agentenv.server.dashboard.pages.frame import ROOT, Fragment, button, every, frame
from agentenv.server.dashboard.rendering import number, span
from agentenv.server.trainings import reading as found

EVERY = 1.0
SLOWLY = 3.0
COMPARED = 6
"""Runs that are laid side by side at most."""
CHARTS = 12
"""Metrics of a run that are drawn."""
KEPT = 2 * found.POINTS
"""Points that the browser keeps of a curve."""


@ui.page("/runs")
async def runs(request: Request) -> None:
    """All of them."""
    with frame(request, "Runs", "Runs") as viewer:
        viewer.require_overseer()
        directory = viewer.services.settings.runs
        with ui.element("section").classes("card"):
            with ui.element("div").classes("line"):
                ui.html("<h2>Training runs</h2>", sanitize=False).classes("grow")
                button("Compare those chosen", _compare_chosen)
            place = ui.element("div")
            told: Fragment | None = None

        async def update() -> None:
            nonlocal told
            rows = await asyncio.to_thread(found.listed, directory)
            if told is None or not rows:
                place.clear()
                with place:
                    told = Fragment("runs.html", root=ROOT, runs=rows) if rows else None
                    if not rows:
                        ui.html('<p class="empty">There is no run. <code>agentenv train CONFIG</code> starts one.</p>', sanitize=False)
            else:
                told.show(root=ROOT, runs=rows)

        await update()
        every(SLOWLY, update)


def _compare_chosen() -> None:
    ui.run_javascript(
        "const ids = [...document.querySelectorAll('input[name=run]:checked')].map((it) => it.value);"
        f"if (ids.length > 1) location.href = '{ROOT}/compare?runs=' + ids.join(',');"
    )


@ui.page("/runs/{run}")
async def run(request: Request, run: str) -> None:
    """One of them."""
    with frame(request, run, "Runs") as viewer:
        viewer.require_overseer()
        directory = await asyncio.to_thread(found.find, viewer.services.settings.runs, run)
        await RunPage(directory).build()


class RunPage:
    """Its figures and curves, followed as long as the page is open."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._follower = LineFollower(run.metrics_file)
        self._charts: dict[str, Chart] = {}

    async def build(self) -> None:
        """Everything on it."""
        rows = await asyncio.to_thread(self._follower.poll)
        told = await asyncio.to_thread(self._summary)
        with ui.element("div").classes("line"):
            ui.label(self._run.id).props("role=heading aria-level=1").classes("title mono")
            self._state = ui.label(told["status"]).classes(f"state {told['status']}")
            ui.label(told["message"] or "").classes("soft")
        with ui.element("section").classes("card"):
            self._figures = Fragment("metrics.html", figures=_figures(told))
        self._grid = ui.element("div").classes("grid")
        self._draw(rows)
        with ui.element("section").classes("card"):
            ui.html("<h2>Files</h2>", sanitize=False)
            self._artefacts = Fragment("artefacts.html", **await asyncio.to_thread(self._files))
        with ui.element("details").classes("card"):
            with ui.element("summary"):
                ui.label("Configuration")
            Fragment("facts.html", facts=list(found.flattened(_configuration(self._run))))
        every(EVERY, self._update)

    async def _update(self) -> None:
        rows = await asyncio.to_thread(self._follower.poll)
        told = await asyncio.to_thread(self._summary)
        self._state.set_text(told["status"])
        self._state.classes(replace=f"state {told['status']}")
        self._figures.show(figures=_figures(told))
        if rows:
            self._draw(rows)
            self._artefacts.show(**await asyncio.to_thread(self._files))

    def _draw(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for name, points in found.curves(rows).items():
            chart = self._charts.get(name)
            if chart is not None:
                chart.extend([points], keep=KEPT)
            elif len(self._charts) < CHARTS:
                with self._grid, ui.element("section").classes("card"):
                    ui.label(name).props("role=heading aria-level=3").classes("soft")
                    self._charts[name] = chart = Chart([name], over_time=False)
                    chart.begin([points])

    def _summary(self) -> dict[str, Any]:
        return summarise(self._run, self._run.status())

    def _files(self) -> dict[str, object]:
        return {"root": ROOT, "run": self._run.id, "artefacts": found.artefacts(self._run)}


@ui.page("/compare")
async def compare(request: Request, runs: str = "") -> None:
    """Several of them: their curves in the same charts, and what differs in their configurations."""
    with frame(request, "Compare", "Runs") as viewer:
        viewer.require_overseer()
        names = [name for name in dict.fromkeys(runs.split(",")) if name][:COMPARED]
        if len(names) < 2:
            raise NotFound("choose two runs or more to compare.")
        chosen = [await asyncio.to_thread(found.find, viewer.services.settings.runs, name) for name in names]
        curves = [found.curves(await asyncio.to_thread(list, one.metrics())) for one in chosen]
        ui.html(f"<h1>Compare {len(chosen)} runs</h1>", sanitize=False)
        shared = [name for name in dict.fromkeys(name for one in curves for name in one) if sum(name in one for one in curves) > 1]
        with ui.element("div").classes("grid"):
            for metric in shared[:CHARTS]:
                with ui.element("section").classes("card"):
                    ui.label(metric).props("role=heading aria-level=3").classes("soft")
                    chart = Chart([one.id for one in chosen], over_time=False, tall=True)
                    chart.begin([one.get(metric, []) for one in curves])
        with ui.element("section").classes("card"):
            ui.html("<h2>What differs in their configurations</h2>", sanitize=False)
            rows = found.differences([_configuration(one) for one in chosen])
            Fragment("differences.html", names=[one.id for one in chosen], rows=rows)


def _configuration(run: RunDirectory) -> Mapping[str, Any]:
    configuration = run.manifest().get("config")
    return configuration if isinstance(configuration, dict) else {}


def _figures(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    progress = [("done", f"{100 * told['progress']:.0f} %")] if told["progress"] is not None else []
    return [
        ("steps", number(told["step"])),
        *progress,
        ("episodes", number(told["episodes"])),
        ("mean return", number(told["return_mean"])),
        ("loss", number(told["loss"])),
        ("steps a second", number(told["steps_per_second"])),
        ("elapsed", span(told["elapsed_seconds"])),
        ("left", span(told["eta_seconds"])),
    ]
