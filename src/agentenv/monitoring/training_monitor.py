"""What a training is doing, read from its run's directory or asked of a server: from another process, live or after the fact."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentenv.errors import CapabilityError, NotFound
from agentenv.monitoring.lines import LineFollower
from agentenv.monitoring.run_dir import RunDirectory, RunStatus
from agentenv.monitoring.runs import find_run

if TYPE_CHECKING:
    from agentenv.monitoring.server_runs import ServerRun

_RECENT_ROWS = 200
_LOOK_EVERY = 0.5


class TrainingMonitor:
    """Follows one run: `run` is its id or directory, by default the live one started last, else the latest.

    `runs_dir` is where runs are looked for, by default ./runs and every place on this machine where one was started. With `server` it is
    a run of the machine on which that server runs; `api_key` (by default AGENTENV_API_KEY) is one of its operator's. Then every method
    may also raise `Unauthenticated`, `Forbidden` and `InfrastructureError`.
    """

    def __init__(
        self,
        run: str | Path | None = None,
        runs_dir: str | Path | None = None,
        *,
        server: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._wanted = run
        self._runs_dir = runs_dir
        self._remote = _remote(run, server, api_key) if server is not None else None

    @property
    def named(self) -> bool:
        """Whether one run was asked for by name."""
        return self._wanted is not None

    def find(self) -> RunDirectory:
        """The directory of the run that is followed. Raises `NotFound`, `CapabilityError` for one on a server."""
        if self._remote is not None:
            raise CapabilityError("a run on a server has no directory here.", remedy="Use `get_metrics`, `history` or `follow`.")
        return find_run(self._wanted, self._runs_dir)

    def get_metrics(self) -> dict[str, Any]:
        """Where the training stands now, as plain data.

        `status` is "live", "finished", "interrupted", "failed", "crashed", "unreadable" or "no run" (with nothing but a `hint` beside it).
        For a run there are always `run`, `directory`, `step`, `max_steps`, `progress` (0-1), `episodes`, `return_mean`, `loss`,
        `steps_per_second`, `eta_seconds`, `elapsed_seconds`, `started` and `updated` (unix seconds) and `message`, each None where it is
        not known; then the latest value of every other metric. Raises `NotFound` for a run that was named and does not exist.
        """
        try:
            if self._remote is not None:
                return self._remote.summary()
            run = self.find()
        except NotFound:
            if self._wanted is not None:
                raise
            return {
                "status": "no run",
                "hint": "Start a training with `agentenv train CONFIG`; its metrics are here from its first step on.",
            }
        return summarise(run, run.status())

    def prometheus(self) -> str:
        """What the training process itself has counted so far, in Prometheus' text format; empty where there is no run.

        These are the `agentenv_environment_…` families of docs/monitoring.md, as of the latest row. Raises `NotFound` for a run that was
        named and does not exist.
        """
        try:
            return self.find().prometheus() if self._remote is None else self._remote.prometheus()
        except NotFound:
            if self._wanted is not None:
                raise
            return ""

    def history(self) -> list[dict[str, Any]]:
        """All rows of metrics, the oldest first. Raises `NotFound`."""
        return list(self.find().metrics() if self._remote is None else self._remote.rows())

    def follow(self) -> Iterator[dict[str, Any]]:
        """All rows of metrics, and each further one as it is written, until the training ends. Raises `NotFound`."""
        return _followed(self.find()) if self._remote is None else self._remote.follow()


def _remote(run: str | Path | None, server: str, api_key: str | None) -> ServerRun:
    from agentenv.monitoring.server_runs import ServerRun  # httpx takes a while to load.

    return ServerRun(None if run is None else str(run), server, api_key)


def _followed(run: RunDirectory) -> Iterator[dict[str, Any]]:
    follower, tick = LineFollower(run.metrics_file), threading.Event()
    going = True
    while going:
        # Asked before the last look, so that nothing is missed which was written in between.
        going = run.is_live()
        rows = follower.poll()
        yield from rows
        if going and not rows:
            tick.wait(_LOOK_EVERY)


def summarise(run: RunDirectory, status: RunStatus) -> dict[str, Any]:
    """`TrainingMonitor.get_metrics` for a run whose status is known."""
    rows = run.last_metrics(_RECENT_ROWS)
    latest = {name: value for row in rows for name, value in row.items() if value is not None}
    step = latest.pop("step", None)
    latest.pop("time", None)
    speed = latest.pop("steps_per_second", None) or measured_speed(rows)
    max_steps = status.max_steps
    summary: dict[str, Any] = {
        "run": run.id,
        "directory": str(run.path),
        "status": "live" if status.live else status.state,
        "step": step,
        "max_steps": max_steps,
        "progress": min(step / max_steps, 1.0) if step is not None and max_steps else None,
        "episodes": latest.pop("episodes", None),
        "return_mean": latest.pop("return_mean", None),
        "loss": latest.pop("loss", None),
        "steps_per_second": speed,
        "eta_seconds": max(max_steps - step, 0) / speed if status.live and speed and max_steps and step is not None else None,
        "started": status.started,
        "updated": status.updated,
        "elapsed_seconds": _elapsed(status),
        "message": status.message,
    }
    return summary | latest


def measured_speed(rows: list[dict[str, Any]]) -> float | None:
    """Steps a second over `rows` (their `step` and `time`); None where they do not tell."""
    timed = [
        (row["time"], row["step"])
        for row in rows
        if isinstance(row.get("time"), (int, float)) and isinstance(row.get("step"), (int, float))
    ]
    if len(timed) < 2:
        return None
    (begin, first), (end, last) = timed[0], timed[-1]
    return (last - first) / (end - begin) if end > begin and last > first else None


def _elapsed(status: RunStatus) -> float | None:
    if status.started is None:
        return None
    end = time.time() if status.live else status.finished or status.updated or status.started
    return max(end - status.started, 0.0)
