"""Prometheus metrics of nodes, sandboxes, environments and trainings, on a registry that the caller passes.

Names end in their unit (seconds, bytes) and counters in `_total`, as https://prometheus.io/docs/practices/naming/ asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from agentenv.errors import Stage
from agentenv.monitoring.stages import StageTimings, total_seconds

START_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds, from a namespace's start to a virtual machine's."""

STEP_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0, 60.0)
"""Upper bounds in seconds of one step of an environment."""


class SandboxMetrics:
    """Starts, ends and use of sandboxes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.started = Counter("agentenv_sandboxes_started", "Sandboxes that came up.", ["backend"], registry=registry)
        self.failed = Counter("agentenv_sandbox_start_failures", "Sandboxes that did not come up.", registry=registry)
        self.ended = Counter("agentenv_sandboxes_ended", "Sandboxes that ended, by why.", ["backend", "reason"], registry=registry)
        self.live = Gauge("agentenv_sandboxes_live", "Sandboxes that exist now, by state.", ["backend", "state"], registry=registry)
        self.memory = Gauge("agentenv_sandbox_memory_bytes", "Memory used by one sandbox.", ["sandbox"], registry=registry)
        self.cpu = Gauge(
            "agentenv_sandbox_cpu_seconds", "Processor time used by one sandbox since its start.", ["sandbox"], registry=registry
        )
        self.storage = Gauge("agentenv_sandbox_storage_bytes", "Bytes written to one sandbox's own files.", ["sandbox"], registry=registry)
        self.processes = Gauge("agentenv_sandbox_processes", "Processes in one sandbox.", ["sandbox"], registry=registry)
        self._stage = Histogram(
            "agentenv_sandbox_start_stage_seconds",
            'How long each stage of a start took; "total" is all of them.',
            ["backend", "stage"],
            buckets=START_BUCKETS,
            registry=registry,
        )
        self._quantile = Gauge(
            "agentenv_sandbox_start_stage_quantile_seconds",
            "Percentiles of each stage over the last 1000 starts.",
            ["stage", "quantile"],
            registry=registry,
        )
        self.timings = StageTimings()

    def record_start(self, backend: str, stages: Iterable[Stage]) -> None:
        """Counts a sandbox that came up and how long each stage took."""
        listed = tuple(stages)
        self.started.labels(backend).inc()
        for stage in listed:
            self._stage.labels(backend, stage.name).observe(stage.seconds)
        self._stage.labels(backend, "total").observe(total_seconds(listed))
        self.timings.record(listed)

    def record_usage(
        self, sandbox: str, *, memory: int | None, cpu_seconds: float | None, storage: int | None, processes: int | None
    ) -> None:
        """Sets what one sandbox uses now; None leaves a value as it is."""
        pairs: tuple[tuple[Gauge, float | None], ...] = (
            (self.memory, memory),
            (self.cpu, cpu_seconds),
            (self.storage, storage),
            (self.processes, processes),
        )
        for gauge, value in pairs:
            if value is not None:
                gauge.labels(sandbox).set(value)

    def forget(self, sandbox: str) -> None:
        """Removes the values of a sandbox that is gone."""
        for gauge in (self.memory, self.cpu, self.storage, self.processes):
            gauge.remove_by_labels({"sandbox": sandbox})

    def refresh(self) -> None:
        """Brings the percentiles up to date; `prometheus_text` does it before it writes."""
        for stage in self.timings.summary():
            for quantile, seconds in (("0.5", stage.p50), ("0.95", stage.p95), ("0.99", stage.p99)):
                self._quantile.labels(stage.name, quantile).set(seconds)


class NodeMetrics:
    """What one machine has and has given away; `node` is its host name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.cores = Gauge("agentenv_node_cores", "Cores that sandboxes can use.", ["node"], registry=registry)
        self.memory = Gauge("agentenv_node_memory_bytes", "Main memory.", ["node"], registry=registry)
        self.memory_available = Gauge("agentenv_node_memory_available_bytes", "Memory free without swapping.", ["node"], registry=registry)
        self.storage_free = Gauge("agentenv_node_storage_free_bytes", "Free space under AGENTENV_HOME.", ["node"], registry=registry)
        self.sandboxes = Gauge("agentenv_node_sandboxes", "Live sandboxes of all owners.", ["node"], registry=registry)
        self.snapshots = Gauge("agentenv_node_snapshots", "Snapshots kept.", ["node"], registry=registry)
        self.reconciled = Counter("agentenv_node_reconciled", "Leftovers of dead owners removed.", ["node", "kind"], registry=registry)


class EnvironmentMetrics:
    """Steps, episodes and faults of environments."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.steps = Counter("agentenv_environment_steps", "Steps taken.", ["environment"], registry=registry)
        self.episodes = Counter("agentenv_environment_episodes", "Episodes ended, by how.", ["environment", "end"], registry=registry)
        self.infra_errors = Counter(
            "agentenv_environment_infra_errors", "Episodes lost to the machinery.", ["environment"], registry=registry
        )
        self.step_seconds = Histogram(
            "agentenv_environment_step_seconds", "Time of one step.", ["environment"], buckets=STEP_BUCKETS, registry=registry
        )
        self.reset_seconds = Histogram(
            "agentenv_environment_reset_seconds", "Time of one reset.", ["environment"], buckets=START_BUCKETS, registry=registry
        )


class TrainingMetrics:
    """Where a training stands; the same numbers as a run's metrics.jsonl."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._info = Gauge("agentenv_training_info", "1 for the run that the other values are of.", ["run", "status"], registry=registry)
        self._value = Gauge("agentenv_training_value", "The latest value of each metric of the run.", ["run", "name"], registry=registry)
        self._named = {
            "step": Gauge("agentenv_training_step", "Environment steps done.", ["run"], registry=registry),
            "max_steps": Gauge("agentenv_training_max_steps", "Environment steps to do.", ["run"], registry=registry),
            "episodes": Gauge("agentenv_training_episodes", "Episodes ended.", ["run"], registry=registry),
            "return_mean": Gauge("agentenv_training_return_mean", "Mean return of the latest episodes.", ["run"], registry=registry),
            "loss": Gauge("agentenv_training_loss", "The latest loss.", ["run"], registry=registry),
            "steps_per_second": Gauge("agentenv_training_steps_per_second", "Environment steps a second.", ["run"], registry=registry),
            "eta_seconds": Gauge("agentenv_training_eta_seconds", "Estimated time to the end.", ["run"], registry=registry),
        }

    def record(self, metrics: Mapping[str, object]) -> None:
        """Takes over what `TrainingMonitor.get_metrics` returned (or what a training is about to log, with `run` and `status`)."""
        run = str(metrics.get("run", ""))
        self._info.clear()
        if run:
            self._info.labels(run, str(metrics.get("status", ""))).set(1)
        for name, value in metrics.items():
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                continue
            if name in self._named:
                self._named[name].labels(run).set(value)
            else:
                self._value.labels(run, name).set(value)


class Metrics:
    """All metrics of one process on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.node = NodeMetrics(registry)
        self.sandboxes = SandboxMetrics(registry)
        self.environments = EnvironmentMetrics(registry)
        self.training = TrainingMetrics(registry)

    def prometheus_text(self) -> str:
        """Everything in Prometheus' text format (version 0.0.4)."""
        self.sandboxes.refresh()
        return render(self.registry)


def render(registry: CollectorRegistry) -> str:
    """A registry in Prometheus' text format (version 0.0.4)."""
    return generate_latest(registry).decode()
