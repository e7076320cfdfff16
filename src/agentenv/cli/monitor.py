"""`agentenv monitor`: a training as it runs, in the terminal, as JSON, or for Prometheus."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from agentenv.cli.output import JsonFlag, console, print_json
from agentenv.errors import NotFound
from agentenv.monitoring import TrainingMonitor


def monitor(
    run: Annotated[str | None, typer.Argument(help="A run's id or directory; by default the live or the latest one.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    as_json: JsonFlag = False,
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Print the metrics in Prometheus' text format.")] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="With --prometheus: serve them on this port of the loopback (0: any free one).")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 1.0,
    runs_dir: Annotated[Path | None, typer.Option(help="Where to look for runs; by default ./runs and the index.")] = None,
) -> None:
    """Watches a training until it ends: progress, speed, return, metrics, events. Ctrl-C leaves the view, not the training."""
    source = TrainingMonitor(run, runs_dir)
    if port is not None and not prometheus:
        raise typer.BadParameter("--port only means something together with --prometheus.", param_hint="--port")
    if prometheus:
        _prometheus(source, port)
    elif as_json:
        _json(source, interval, once=once)
    else:
        _terminal(source, interval, once=once or not sys.stdout.isatty())


def _prometheus(source: TrainingMonitor, port: int | None) -> None:
    from agentenv.monitoring.exporter import Exporter

    if port is None:
        typer.echo(_prometheus_text(source), nl=False)
        return
    with Exporter(lambda: _prometheus_text(source), port) as exporter:
        typer.echo(f"Serving http://127.0.0.1:{exporter.port}/metrics until Ctrl-C.", err=True)
        threading.Event().wait()


def _prometheus_text(source: TrainingMonitor) -> str:
    """The training with what its own process has counted, this machine and its sandboxes, as they are now."""
    from prometheus_client import CollectorRegistry

    from agentenv.cli.machine_metrics import record_machine
    from agentenv.monitoring.metrics import NodeMetrics, SandboxMetrics, TrainingMetrics, render

    registry = CollectorRegistry()
    TrainingMetrics(registry).record(source.get_metrics())
    record_machine(NodeMetrics(registry), SandboxMetrics(registry))
    return render(registry) + source.prometheus()


def _json(source: TrainingMonitor, interval: float, *, once: bool) -> None:
    tick = threading.Event()
    while True:
        metrics = source.get_metrics()
        print_json(metrics)
        if once or metrics["status"] != "live":
            return
        tick.wait(interval)


def _terminal(source: TrainingMonitor, interval: float, *, once: bool) -> None:
    try:
        found = source.find()
    except NotFound as error:
        if source.named:
            raise
        typer.echo(str(error))
        return
    from rich.live import Live

    from agentenv.cli.monitor_view import RunView

    screen, view = console(), RunView(found)
    if once:
        screen.print(view.render(screen.width))
        return
    tick = threading.Event()
    with Live(view.render(screen.width), console=screen, auto_refresh=False) as live:
        while view.status.live:
            tick.wait(interval)
            view.refresh()
            live.update(view.render(screen.width), refresh=True)
