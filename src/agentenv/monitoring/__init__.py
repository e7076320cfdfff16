"""Watches nodes, sandboxes, environments and trainings: events, metrics, and the directory in which a run leaves its traces.

Nothing here knows what it watches: the rooms above write through `EventSink`, `Metrics` and `RunWriter`, readers use `TrainingMonitor`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from agentenv.monitoring.events import EventSink, FanOut, JsonLinesSink, NullSink
from agentenv.monitoring.run_dir import RunDirectory, RunStatus, RunWriter
from agentenv.monitoring.runs import find_run, list_runs
from agentenv.monitoring.training_monitor import TrainingMonitor

if TYPE_CHECKING:
    from agentenv.monitoring.bridge import MetricsSink
    from agentenv.monitoring.exporter import Exporter
    from agentenv.monitoring.metrics import Metrics

__all__ = [
    "EventSink",
    "Exporter",
    "FanOut",
    "JsonLinesSink",
    "Metrics",
    "MetricsSink",
    "NullSink",
    "RunDirectory",
    "RunStatus",
    "RunWriter",
    "TrainingMonitor",
    "find_run",
    "list_runs",
]

_WITH_PROMETHEUS = {"Exporter": "exporter", "Metrics": "metrics", "MetricsSink": "bridge"}


def __getattr__(name: str) -> object:
    """Loads what needs prometheus-client (a tenth of a second) when it is first used."""
    if name not in _WITH_PROMETHEUS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_WITH_PROMETHEUS[name]}"), name)
    return value
