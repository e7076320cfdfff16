"""Metrics on a registry of one's own, percentiles of stages, and the Prometheus text."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from agentenv.errors import AgentEnvError, Stage
from agentenv.monitoring import Exporter, Metrics, MetricsSink
from agentenv.monitoring.stages import StageTimings, percentile


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sample(metrics: Metrics, name: str, /, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_what_a_node_tells_becomes_metrics() -> None:
    metrics = Metrics(CollectorRegistry())
    sink = MetricsSink(metrics)
    for name in "abc":
        sink.emit(
            "sandbox.created", id=name, backend="namespace", image="host", stages={"launch": 0.002, "launch.root": 0.001, "agent": 0.001}
        )
    sink.emit("sandbox.start_failed", id="d", error="no")
    sink.emit("sandbox.paused", id="a", generation=1)
    sink.emit("sandbox.ended", id="b", reason="it was killed")
    sink.emit("sandbox.died", id="c", reason="out of memory")
    sink.emit("sandbox.paused", id="unknown")
    sink.emit("something.else", id="a")
    sink.emit("node.opened", owner="o", home="/x", reconciled=["dead1", "dead2"])
    assert sample(metrics, "agentenv_node_reconciled_total", node=socket.gethostname(), kind="owner") == 2
    assert sample(metrics, "agentenv_sandboxes_started_total", backend="namespace") == 3
    assert sample(metrics, "agentenv_sandbox_start_failures_total") == 1
    assert sample(metrics, "agentenv_sandboxes_live", backend="namespace", state="paused") == 1
    assert sample(metrics, "agentenv_sandboxes_live", backend="namespace", state="running") == 0
    assert sample(metrics, "agentenv_sandboxes_ended_total", backend="namespace", reason="died") == 1
    assert sample(metrics, "agentenv_sandbox_start_stage_seconds_count", backend="namespace", stage="total") == 3
    sink.emit("sandbox.resumed", id="a", generation=1)
    assert sample(metrics, "agentenv_sandboxes_live", backend="namespace", state="running") == 1


def test_percentiles_are_exported() -> None:
    metrics = Metrics(CollectorRegistry())
    for milliseconds in range(1, 101):
        metrics.sandboxes.record_start("namespace", [Stage("launch", milliseconds / 1000)])
    exported = samples(metrics.prometheus_text())
    for quantile, seconds in (("0.5", 0.05), ("0.95", 0.095), ("0.99", 0.099)):
        key = ("agentenv_sandbox_start_stage_quantile_seconds", frozenset({("stage", "total"), ("quantile", quantile)}))
        assert exported[key] == seconds


def test_every_family_has_a_help_text() -> None:
    text = Metrics(CollectorRegistry()).prometheus_text()
    families = list(text_string_to_metric_families(text))
    assert len(families) > 20
    assert all(family.documentation and family.name.startswith("agentenv_") for family in families)


def test_two_registries_share_nothing() -> None:
    first, second = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())
    first.sandboxes.record_start("namespace", [])
    assert sample(second, "agentenv_sandboxes_started_total", backend="namespace") is None


def test_the_use_of_a_sandbox_goes_with_it() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.sandboxes.record_usage("a", memory=1000, cpu_seconds=1.5, storage=None, processes=3)
    assert sample(metrics, "agentenv_sandbox_memory_bytes", sandbox="a") == 1000
    assert sample(metrics, "agentenv_sandbox_storage_bytes", sandbox="a") is None
    metrics.sandboxes.forget("a")
    metrics.sandboxes.forget("a")
    assert sample(metrics, "agentenv_sandbox_memory_bytes", sandbox="a") is None


def test_a_training_is_exported_under_its_run() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.training.record({"run": "r", "status": "live", "step": 5, "loss": None, "entropy": 0.5, "exact": True})
    assert sample(metrics, "agentenv_training_step", run="r") == 5
    assert sample(metrics, "agentenv_training_loss", run="r") is None
    assert sample(metrics, "agentenv_training_value", run="r", name="entropy") == 0.5
    assert sample(metrics, "agentenv_training_value", run="r", name="exact") is None
    metrics.training.record({"run": "r", "status": "finished"})
    assert sample(metrics, "agentenv_training_info", run="r", status="live") is None
    assert sample(metrics, "agentenv_training_info", run="r", status="finished") == 1


def test_without_a_run_there_is_nothing_to_export() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.training.record({"status": "no run", "hint": "…"})
    assert not [line for line in metrics.prometheus_text().splitlines() if line.startswith("agentenv_training")]


def test_stages_keep_their_order_and_a_window() -> None:
    timings = StageTimings(window=10)
    for number in range(20):
        timings.record([Stage("b", float(number)), Stage("a", 1.0)])
    summary = timings.summary()
    assert [stage.name for stage in summary] == ["b", "a", "total"]
    assert (summary[0].count, summary[0].total, summary[0].p50, summary[0].longest) == (10, 20, 14.0, 19.0)
    assert StageTimings().summary() == ()


def test_a_part_of_a_stage_does_not_count_twice() -> None:
    timings = StageTimings()
    timings.record([Stage("launch", 2.0), Stage("launch.root", 1.5), Stage("agent", 0.5)])
    assert {stage.name: stage.p50 for stage in timings.summary()} == {"launch": 2.0, "launch.root": 1.5, "agent": 0.5, "total": 2.5}


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_the_least_value_that_covers_its_share(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-9
    assert sum(value < found for value in ordered) < share * len(ordered) + 1e-9


def test_the_exporter_serves_on_the_loopback() -> None:
    answers = iter(["one 1\n", "two 2\n"])

    def text() -> str:
        try:
            return next(answers)
        except StopIteration:
            raise AgentEnvError("nothing left") from None

    with Exporter(text) as exporter:
        url = f"http://127.0.0.1:{exporter.port}"
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            assert answer.read() == b"one 1\n"
        assert urllib.request.urlopen(url, timeout=10).read() == b"two 2\n"
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(url, timeout=10)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/other", timeout=10)
        with pytest.raises(AgentEnvError, match=f"port {exporter.port} of the loopback"):
            Exporter(text, exporter.port)


def test_every_family_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
    for family in text_string_to_metric_families(Metrics(CollectorRegistry()).prometheus_text()):
        if family.name.endswith("_created"):
            # The client library adds when each counter was made.
            continue
        endings = [family.name[position:] for position, letter in enumerate(family.name) if letter == "_"]
        assert family.name in page or any(f"`{ending}" in page for ending in endings), family.name
