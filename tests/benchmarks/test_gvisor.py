"""The benchmarks of gVisor run, at the smallest scale, where there is a runsc; else `bench all` leaves them out and says so."""

from __future__ import annotations

import pytest
from tests.machines import runsc_or_skip
from typer.testing import CliRunner

from agentenv.benchmarks.catalogue import load
from agentenv.benchmarks.row import Scale
from agentenv.cli import bench as bench_module
from agentenv.cli.main import app
from agentenv.errors import BackendUnavailable


@pytest.mark.parametrize("name", ["gvisor-start", "gvisor-fork", "gvisor-pause"])
def test_each_measures_one_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runsc_or_skip(monkeypatch)
    try:
        (row,) = load(name)(Scale(0.001))
    except BackendUnavailable as error:
        pytest.skip(f"no gVisor here: {error.message}")
    assert row.name == name
    assert row.value > 0
    assert row.ratio == pytest.approx(row.value / (row.reference_value or 0))


def test_what_cannot_be_measured_is_left_out_of_all_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_RUNSC", "/no/such/runsc")
    monkeypatch.setattr(bench_module, "ALL", ("gvisor-start",))
    told = CliRunner().invoke(app, ["bench", "all", "--json"])
    assert told.exit_code == 0
    assert "gvisor-start: not measured:" in told.output
    assert CliRunner().invoke(app, ["bench", "gvisor-start", "--json"]).exit_code != 0
