"""Training runs of this machine, as pages and routes need them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.errors import NotFound
from agentenv.monitoring.run_dir import RunDirectory, RunStatus
from agentenv.monitoring.runs import find_run, list_runs
from agentenv.monitoring.training_monitor import summarise

POINTS = 500
"""Points of a curve that are drawn at most."""
BOOKKEEPING = frozenset({"step", "time"})


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in the list."""

    id: str
    status: str
    algorithm: str
    environment: str
    started: float | None
    step: float | None
    progress: float | None
    return_mean: float | None


@dataclass(frozen=True, slots=True)
class Artefact:
    """A file that a run left; `size` in bytes."""

    path: str
    size: int
    modified: float


def listed(directory: Path | None) -> list[RunRow]:
    """All runs, the latest first."""
    return [_row(run, status) for run, status in list_runs(directory)]


def find(directory: Path | None, name: str) -> RunDirectory:
    """The run with that id. Raises `NotFound`: also for a path, which somebody on the network has no business to name."""
    if "/" in name or name.startswith("."):
        raise NotFound(f"there is no run {name!r}.")
    for run, _ in list_runs(directory):
        if run.id == name:
            return run
    return find_run(name, directory)


def curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Each metric over the environment steps, thinned out evenly; the latest point always stays."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        step = row.get("step")
        if not isinstance(step, int | float):
            continue
        for name, value in row.items():
            if name not in BOOKKEEPING and isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(name, []).append((step, value))
    return {name: thinned(points) for name, points in sorted(found.items(), key=lambda pair: _rank(pair[0]))}


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about `POINTS` of them, evenly, the last one included."""
    stride = -(-len(points) // POINTS)
    return points if stride <= 1 else [*points[:-1:stride], points[-1]]


def flattened(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting of a configuration with its dotted key."""
    for name, value in data.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{key}.")
        else:
            yield key, value


def differences(configurations: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """The keys in which they are not all alike, with the value in each (None where it is not set)."""
    flat = [dict(flattened(configuration)) for configuration in configurations]
    keys = sorted({key for one in flat for key in one})
    table = [(key, [one.get(key) for one in flat]) for key in keys]
    return [(key, values) for key, values in table if any(value != values[0] for value in values)]


def artefacts(run: RunDirectory) -> list[Artefact]:
    """The files of a run, by name."""
    found = []
    for path in sorted(run.path.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name != "lock":
            facts = path.stat()
            found.append(Artefact(str(path.relative_to(run.path)), facts.st_size, facts.st_mtime))
    return found


def artefact(run: RunDirectory, name: str) -> Path:
    """A file of a run. Raises `NotFound` for whatever lies elsewhere."""
    path = (run.path / name).resolve()
    if not path.is_relative_to(run.path.resolve()) or not path.is_file():
        raise NotFound(f"run {run.id} has no file {name!r}.")
    return path


def _row(run: RunDirectory, status: RunStatus) -> RunRow:
    told = summarise(run, status)
    configuration = run.manifest().get("config") or {}
    training, environment = configuration.get("training") or {}, configuration.get("environment") or {}
    return RunRow(
        id=run.id,
        status=told["status"],
        algorithm=str(training.get("algorithm", "")),
        environment=str(environment.get("name", "")),
        started=status.started,
        step=told["step"],
        progress=told["progress"],
        return_mean=told["return_mean"],
    )


def _rank(name: str) -> tuple[int, str]:
    first = ("return_mean", "eval_return", "loss", "steps_per_second")
    return (first.index(name) if name in first else len(first), name)
