"""The dashboard for Grafana asks only for what the server tells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import RunningServer

import agentenv

FILE = Path(agentenv.__file__).parents[2] / "docs" / "grafana" / "agentenv.json"
NAME = re.compile(r"agentenv_\w+")
LABELS = re.compile(r"(agentenv_\w+)\{([^}]*)\}")
GROUPED = re.compile(r"by \((\w+)\)")
GIVEN_BY_PROMETHEUS = frozenset({"job", "le"})


def expressions() -> Iterator[tuple[str, str]]:
    dashboard = json.loads(FILE.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


@pytest.fixture(scope="module")
def told(viewed: RunningServer) -> dict[str, set[str]]:
    """The names of /metrics with their labels, after a start, a sample, an end and a failure were counted."""
    with viewed.client() as client:
        sandbox = client.post("/sandboxes", json={"templateID": "base"}).json()["sandboxID"]
        client.get(f"/sandboxes/{sandbox}/metrics").raise_for_status()
        before = client.get("/metrics").text
        client.delete(f"/sandboxes/{sandbox}").raise_for_status()
        text = before + client.get("/metrics").text
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_metric_is_told_with_the_labels_that_are_asked_for(told: dict[str, set[str]]) -> None:
    asked = list(expressions())
    assert len(asked) > 12
    for expression, legend in asked:
        names = NAME.findall(expression)
        assert names
        assert set(names) <= told.keys(), expression
        wanted = {label for _, inside in LABELS.findall(expression) for label in re.findall(r"(\w+)[!=]", inside)}
        wanted |= set(GROUPED.findall(expression)) | set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert wanted - GIVEN_BY_PROMETHEUS <= set().union(*(told[name] for name in names)), expression


def test_the_file_is_what_grafana_reads() -> None:
    dashboard: dict[str, Any] = json.loads(FILE.read_text())
    identifiers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "job"}
    assert all(panel["title"] and panel["description"] for panel in dashboard["panels"])
