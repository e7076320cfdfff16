"""The terminal view of one run: where it stands, the return over the steps, the latest metrics, its sandboxes, and what happened last."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentenv.cli.machine_metrics import sandboxes_here
from agentenv.cli.plot import plot
from agentenv.monitoring.lines import LineFollower
from agentenv.monitoring.machine_log import machine_log_file
from agentenv.monitoring.run_dir import RunDirectory, RunStatus
from agentenv.monitoring.training_monitor import summarise
from agentenv.paths import state_home
from agentenv.units import format_duration

_EVENTS_SHOWN = 6
_ITEMS_SHOWN = 4
_POINTS_KEPT = 2000
_COLOURS = {"live": "green", "finished": "cyan", "interrupted": "yellow", "failed": "red", "crashed": "red"}
_IN_HEADER = {
    *("run", "directory", "status", "step", "max_steps", "progress", "steps_per_second", "eta_seconds"),
    *("started", "updated", "elapsed_seconds", "message"),
}


class RunView:
    """Follows one run's files and draws them; each `refresh` reads only what is new."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.status = RunStatus("unreadable")
        self.summary: dict[str, Any] = {}
        self.returns: list[tuple[float, float]] = []
        self.recent: deque[dict[str, Any]] = deque(maxlen=_EVENTS_SHOWN)
        self.sandboxes: Counter[str] = Counter()
        self._metrics = LineFollower(run.metrics_file)
        self._events = LineFollower(run.events_file)
        self._machine = LineFollower(machine_log_file(state_home()))
        self.refresh()

    def refresh(self) -> None:
        """Reads what the run has written since."""
        self.status = self.run.status()
        self.summary = summarise(self.run, self.status)
        for row in self._metrics.poll():
            if _is_number(row.get("step")) and _is_number(row.get("return_mean")):
                self.returns.append((row["step"], row["return_mean"]))
        if len(self.returns) > _POINTS_KEPT:
            # The plot has far fewer columns than that.
            self.returns = [*self.returns[: -1 : len(self.returns) // _POINTS_KEPT + 1], self.returns[-1]]
        pid = self.status.pid if self.status.live else None
        news = [*self._events.poll(), *(event for event in self._machine.poll() if self._is_of_run(event))]
        self.recent.extend(sorted(news, key=lambda event: event.get("time", 0.0)))
        self.sandboxes = Counter(record.state for record in sandboxes_here(pid)) if pid is not None else Counter()

    def _is_of_run(self, event: dict[str, Any]) -> bool:
        """Whether an event of the machine's log comes from this run's process, in this run's time."""
        when = event.get("time")
        if event.get("pid") != self.status.pid or not isinstance(when, float):
            return False
        return (self.status.started or 0.0) <= when <= (self.status.finished or math.inf)

    def render(self, width: int) -> RenderableType:
        """The whole view for a terminal of `width` columns."""
        parts: list[RenderableType] = [self._header(), self._curve(width), self._values()]
        if self.recent:
            parts.append(self._happened())
        return Group(*parts)

    def _header(self) -> RenderableType:
        summary = self.summary
        state = summary["status"]
        title = Text.assemble(("run ", "dim"), (summary["run"], "bold"), "  ", (state, f"bold {_COLOURS.get(state, 'white')}"))
        step, max_steps = summary["step"], summary["max_steps"]
        line = Text(f"step {_count(step)}" + (f" of {_count(max_steps)}" if max_steps else ""))
        if speed := summary["steps_per_second"]:
            line.append(f"   {speed:,.0f} steps/s")
        if summary["eta_seconds"] is not None:
            line.append(f"   {format_duration(summary['eta_seconds'])} to go")
        if summary["elapsed_seconds"] is not None:
            line.append(f"   {format_duration(summary['elapsed_seconds'])} since its start")
        parts: list[RenderableType] = [line]
        if summary["progress"] is not None:
            parts.append(Padding(ProgressBar(total=1.0, completed=summary["progress"]), 0))
        if summary["message"]:
            parts.append(Text(summary["message"], style="dim"))
        parts.append(Text(summary["directory"], style="dim"))
        return Panel(Group(*parts), title=title, title_align="left")

    def _curve(self, width: int) -> RenderableType:
        lines = plot(self.returns, min(width - 4, 120), 8)
        body = Text("\n".join(lines), style="green") if lines else Text("no episode has ended yet", style="dim")
        return Panel(body, title="mean return", title_align="left")

    def _values(self) -> RenderableType:
        shown = [(name, value) for name, value in self.summary.items() if name not in _IN_HEADER and value is not None]
        shown += [(f"sandboxes {state}", count) for state, count in sorted(self.sandboxes.items())]
        table = Table.grid(padding=(0, 3))
        for start in range(0, len(shown), 3):
            cells = [Text.assemble((f"{name} ", "dim"), _value(value)) for name, value in shown[start : start + 3]]
            table.add_row(*cells)
        return Panel(table if shown else Text("no metrics yet", style="dim"), title="metrics", title_align="left")

    def _happened(self) -> RenderableType:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(min_width=8)
        table.add_column(min_width=max(len(str(event.get("event", ""))) for event in self.recent))
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for event in self.recent:
            when = event.get("time")
            clock = time.strftime("%H:%M:%S", time.localtime(when)) if _is_number(when) else ""
            details = "  ".join(f"{name}={_value(value)}" for name, value in event.items() if name not in {"time", "event", "pid"})
            table.add_row(Text(clock, style="dim"), Text(str(event.get("event", "")), style="bold"), Text(details))
        return Panel(table, title="events", title_align="left")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_value(part)}" for name, part in value.items()) + ")"
    if isinstance(value, list):
        shown = [_value(part) for part in value[:_ITEMS_SHOWN]]
        return f"[{', '.join(shown)}" + (f", … {len(value)} in all]" if len(value) > _ITEMS_SHOWN else "]")
    return str(value)
