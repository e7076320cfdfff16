"""The fleet in Prometheus' terms: starts and their stages, ends, what there is now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentenv.errors import Stage
from agentenv.isolation.contract import Usage
from agentenv.monitoring.metrics import Metrics

Cause = Literal["asked", "timeout", "idle", "died", "failed", "server"]
"""Why a sandbox ended: somebody asked, its time was over, nobody used it, it died by itself, it never came up, the server ended."""


class Telemetry:
    """Metrics on a registry of their own. `started` and `failed` count starts since the server's own."""

    def __init__(self, backend: str, count: Callable[[], Mapping[str, int]]) -> None:
        self.metrics = Metrics(CollectorRegistry())
        self.started = 0
        self.failed = 0
        self._backend = backend
        self._listeners: list[Callable[[Sequence[Stage]], None]] = []
        self.metrics.registry.register(_Counts(count))

    def on_start(self, listener: Callable[[Sequence[Stage]], None]) -> None:
        """Has `listener` told the stages of each start when it is done, in the context of who asked for it."""
        self._listeners.append(listener)

    def up(self, stages: Sequence[Stage]) -> None:
        """A sandbox came up."""
        self.started += 1
        self.metrics.sandboxes.record_start(self._backend, stages)
        for listener in self._listeners:
            listener(stages)

    def down(self, sandbox: str, cause: Cause) -> None:
        """A sandbox ended."""
        self.metrics.sandboxes.ended.labels(self._backend, cause).inc()
        if cause == "failed":
            self.failed += 1
            self.metrics.sandboxes.failed.inc()
        self.metrics.sandboxes.forget(sandbox)

    def uses(self, sandbox: str, usage: Usage) -> None:
        """What a sandbox uses now."""
        self.metrics.sandboxes.record_usage(
            sandbox, memory=usage.memory, cpu_seconds=usage.cpu_seconds, storage=usage.storage, processes=usage.processes
        )

    def text(self) -> str:
        """Everything in Prometheus' text format (version 0.0.4)."""
        return self.metrics.prometheus_text()


class _Counts(Collector):
    """The numbers of the moment, asked for when they are read."""

    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._count = count

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily("agentenv_server_sandboxes", "Sandboxes of all tenants, by where they stand.", labels=["state"])
        for state, number in self._count().items():
            family.add_metric([state], number)
        yield family
