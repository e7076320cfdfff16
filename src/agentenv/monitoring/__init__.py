"""Watches nodes, sandboxes, environments and trainings: events, metrics, and the directory in which a run leaves its traces.

Nothing here knows what it watches: the rooms above write through `EventSink`, `Metrics` and `RunWriter`, readers use `TrainingMonitor`.
"""

from agentenv.monitoring.events import EventSink, JsonLinesSink, NullSink
from agentenv.monitoring.run_dir import RunDirectory, RunStatus, RunWriter
from agentenv.monitoring.runs import find_run, list_runs
from agentenv.monitoring.training_monitor import TrainingMonitor

__all__ = [
    "EventSink",
    "JsonLinesSink",
    "NullSink",
    "RunDirectory",
    "RunStatus",
    "RunWriter",
    "TrainingMonitor",
    "find_run",
    "list_runs",
]
