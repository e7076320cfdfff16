"""`agentenv runs`: the trainings on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from agentenv.cli.lazy import new_app
from agentenv.cli.output import JsonFlag, console, print_json
from agentenv.monitoring import RunDirectory, find_run, list_runs
from agentenv.monitoring.training_monitor import summarise
from agentenv.units import format_duration

app = new_app("Lists trainings, the latest first; `agentenv runs show RUN` shows one.", no_args_is_help=False)

RunsDir = Annotated[Path | None, typer.Option(help="Where to look for runs; by default ./runs and the index.")]


@app.callback(invoke_without_command=True)
def runs(ctx: typer.Context, runs_dir: RunsDir = None, as_json: JsonFlag = False) -> None:
    """Lists trainings, the latest first; `agentenv runs show RUN` shows one."""
    if ctx.invoked_subcommand is not None:
        return
    summaries = [summarise(run, status) for run, status in list_runs(runs_dir)]
    if as_json:
        print_json(summaries)
    elif summaries:
        _print_table(summaries)
    else:
        typer.echo("There is no run yet. `agentenv train CONFIG` starts one.")


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run's id, the beginning of one, or its directory; `latest` for the latest.")] = "latest",
    runs_dir: RunsDir = None,
    as_json: JsonFlag = False,
) -> None:
    """Shows one training: what was run, where it stands, how it ended, and where its files are."""
    found = find_run(run, runs_dir)
    data = describe(found)
    if as_json:
        print_json(data)
        return
    import yaml

    typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


def describe(run: RunDirectory) -> dict[str, Any]:
    """All that a run's directory tells, as plain data."""
    checkpoints = sorted(path.name for path in run.checkpoints.iterdir()) if run.checkpoints.is_dir() else []
    files = {"curve": run.curve_file, "tensorboard": run.tensorboard, "metrics": run.metrics_file, "events": run.events_file}
    return {
        "metrics": summarise(run, run.status()),
        "result": run.result(),
        "checkpoints": checkpoints,
        "files": {name: str(path) for name, path in files.items() if path.exists()},
        "manifest": run.manifest(),
    }


def _print_table(summaries: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("RUN", "STATE", "STARTED", "STEPS", "RETURN", "STEPS/S", "TOOK"):
        table.add_column(column, justify="right" if column in {"STEPS", "RETURN", "STEPS/S", "TOOK"} else "left", no_wrap=True)
    table.add_column("IN", no_wrap=True, overflow="ellipsis")
    for summary in summaries:
        table.add_row(*_cells(summary))
    console().print(table)


def _cells(summary: dict[str, Any]) -> list[str]:
    step, max_steps, started = summary["step"], summary["max_steps"], summary["started"]
    steps = "-" if step is None else _compact(step) + (f"/{_compact(max_steps)}" if max_steps else "")
    directory = Path(summary["directory"]).parent
    here = Path.cwd()
    return [
        summary["run"],
        summary["status"],
        time.strftime("%m-%d %H:%M", time.localtime(started)) if started else "-",
        steps,
        _number(summary["return_mean"], "{:.2f}"),
        _number(summary["steps_per_second"], "{:,.0f}"),
        "-" if summary["elapsed_seconds"] is None else format_duration(summary["elapsed_seconds"]),
        str(directory.relative_to(here) if directory.is_relative_to(here) else directory),
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _compact(count: int) -> str:
    """59800 -> 59.8k, 1000000 -> 1M."""
    for limit, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= limit:
            return f"{count / limit:.4g}{unit}"
    return str(count)
