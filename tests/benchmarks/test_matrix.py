"""The matrix measures all it names on what can be used, at the smallest scale, and is shown with a column for each backend."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tests.conditions import needs_namespaces
from typer.testing import CliRunner

from agentenv.benchmarks import matrix
from agentenv.benchmarks.catalogue import ALL, BENCHMARKS
from agentenv.benchmarks.row import Row
from agentenv.cli.main import app
from agentenv.isolation import probe_all

MEASURES = ["start", "exec", "fork", "pause", "resume", "cpu", "files", "forks", "memory", "fork-memory"]


@needs_namespaces
def test_every_measure_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "probe_all", lambda: [probe for probe in probe_all() if probe.backend == "namespace"])
    monkeypatch.setattr(matrix, "WORK", {name: line.replace("000 ]", " ]").replace("200 ]", "2 ]") for name, line in matrix.WORK.items()})
    told = CliRunner().invoke(app, ["bench", "matrix", "--json", "--scale", "0.001"])
    assert told.exit_code == 0, told.output
    rows = [Row(**json.loads(line)) for line in told.stdout.splitlines()]
    assert [row.name for row in rows] == [f"{measure}/namespace" for measure in MEASURES]
    for row in rows:
        assert row.n >= 1
        assert row.machine
        if not row.name.startswith(("memory", "fork-memory")):  # a handful of sandboxes is less than the machine's own breathing
            assert row.value > 0
            assert row.reference == ("this machine without a sandbox" if row.name.split("/")[0] in matrix.WORK else "namespace")


def test_the_table_has_a_column_for_each_backend_and_a_gap_where_nothing_was_measured() -> None:
    row = Row("exec/a", 2.5, "ms", 2.5, 3.0, 5, "a", 2.5, 1.0, None, None, "a machine")
    slow = dataclasses.replace(row, name="cpu/a", ratio=1.5)
    header, lines = matrix.pivot([row, dataclasses.replace(row, name="exec/b", value=12345.0), slow])
    assert header == ["", "a", "b"]
    assert lines == [["one command", "2.5 ms", "12345 ms"], ["computing", "1.50x", ""]]


def test_all_leaves_the_matrix_out() -> None:
    assert set(BENCHMARKS) - set(ALL) == {"matrix"}
