"""The matrix measures all it names on what can be used, at the smallest scale, and is shown with a column for each backend."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from tests.conditions import needs_namespaces
from typer.testing import CliRunner

from agentenv.benchmarks import matrix
from agentenv.benchmarks.catalogue import ALL, BENCHMARKS
from agentenv.benchmarks.row import Row, Scale
from agentenv.cli.bench import write
from agentenv.cli.main import app
from agentenv.errors import BackendUnavailable
from agentenv.isolation import Probe, probe_all

MEASURES = ["start", "exec", "fork", "pause", "resume", "cpu", "files", "forks", "syscalls", "memory", "fork-memory"]
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "backends.md"


@needs_namespaces
def test_every_measure_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "probe_all", lambda: [probe for probe in probe_all() if probe.backend == "namespace"])
    monkeypatch.setattr(matrix, "WORK", {name: re.sub(r"00+( |$)", r"0\1", line) for name, line in matrix.WORK.items()})
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
    assert lines == [["one command", "2.5 ms", "12.3 s"], ["computing", "1.50x", ""]]


def test_the_table_is_written_as_the_documentation_has_it(tmp_path: Path) -> None:
    row = Row("start/namespace", 2.5, "ms", 2.5, 3.0, 5, "a", 2.5, 1.0, None, None, "2 cores, 24 GiB, Linux 6.18, Python 3.11, Linux 6.18")
    emulated = dataclasses.replace(row, name="start/qemu", value=12345.0, machine=f"{row.machine}, QEMU 7.2 (tcg)")
    write([row, emulated], tmp_path, matrix=True)
    told, header, line, first = (tmp_path / "table.md").read_text().replace("\n\n", "\n").splitlines()
    assert told.endswith("2 cores, 24 GiB, Linux 6.18:")
    assert (header, line) == ("| | namespace | qemu, emulated |", "|---|---|---|")
    assert first == "| start, to the end of the first command | 2.5 ms | 12.3 s |"
    documented = [line.split("|")[1].strip() for line in DOCUMENTATION.read_text().splitlines() if line.startswith("|")]
    assert set(matrix.TITLES.values()) <= set(documented)


@needs_namespaces
def test_what_cannot_be_measured_is_said_with_the_reason(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    unusable = Probe("firecracker", usable=False, version=None, reason="its KVM emulates", remedy="Use another machine.")
    monkeypatch.setattr(matrix, "probe_all", lambda: [unusable])
    with pytest.raises(BackendUnavailable, match="no backend can be used"):
        list(matrix.run(Scale(0.001)))
    assert "backend='firecracker' reason='its KVM emulates'" in caplog.text


def test_all_leaves_the_matrix_out() -> None:
    assert set(BENCHMARKS) - set(ALL) == {"matrix"}
