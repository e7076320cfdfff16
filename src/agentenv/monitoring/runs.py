"""Finds runs: in ./runs (or a given directory) and, through the index, wherever else they were started on this machine."""

from __future__ import annotations

from pathlib import Path

from agentenv.errors import NotFound
from agentenv.monitoring.run_dir import RunDirectory, RunStatus
from agentenv.monitoring.run_index import registered
from agentenv.naming import near

DEFAULT_RUNS_DIRECTORY = Path("runs")


def list_runs(runs_dir: str | Path | None = None) -> list[tuple[RunDirectory, RunStatus]]:
    """All runs with where they stand, the latest start first.

    With `runs_dir` those in that directory only; else those in ./runs and all that the index knows. A run that cannot be read is listed as
    "unreadable".
    """
    if runs_dir is not None:
        found = RunDirectory.within(Path(runs_dir))
    else:
        found = [*RunDirectory.within(DEFAULT_RUNS_DIRECTORY), *(RunDirectory(path) for path in registered())]
    unique = {run.path.resolve(): run for run in found}
    with_status = [(run, run.status()) for run in unique.values()]
    return sorted(with_status, key=lambda pair: (pair[1].started or 0.0, pair[0].id), reverse=True)


def find_run(name: str | Path | None = None, runs_dir: str | Path | None = None) -> RunDirectory:
    """The run called `name`: a directory, an id, or the unambiguous beginning of one.

    Without a name, or with "latest", the live run that was started last, else the latest. Raises `NotFound`, with near matches.
    """
    if isinstance(name, Path) or (name is not None and ("/" in name or Path(name, "status.json").is_file())):
        return RunDirectory.open(name)
    runs = list_runs(runs_dir)
    if name is None or name == "latest":
        if not runs:
            raise NotFound("there is no run.", remedy="`agentenv train CONFIG` starts one.")
        return next((run for run, status in runs if status.live), runs[0][0])
    return _by_id(name, [run for run, _ in runs])


def _by_id(name: str, runs: list[RunDirectory]) -> RunDirectory:
    matches = [run for run in runs if run.id == name] or [run for run in runs if run.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        places = ", ".join(str(run.path) for run in matches[:5])
        raise NotFound(f"{name!r} is the name of {len(matches)} runs: {places}.", remedy="Give the directory of the one you mean.")
    hint = near(name, [run.id for run in runs])
    remedy = f"Did you mean {hint}?" if hint else "`agentenv runs` lists the runs that there are."
    raise NotFound(f"there is no run {name!r}.", remedy=remedy)
