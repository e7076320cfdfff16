"""Every benchmark runs, at the smallest scale, and says all that a row is to say; how fast anything is, no test asks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields

import pytest
from tests.conditions import needs_namespaces

from agentenv.benchmarks.row import Row

NAMES = {"start", "start-p99", "exec", "shell", "fork", "step", "density", "files-write", "files-read", "train"}
"""The rows that have a target; beside them there is one for each stage of a start."""

QUICK = ("start", "exec", "shell", "fork", "step", "density", "files", "train")
SERVER = ("api-start", "api-exec", "api-files", "api-mass-create", "api-hold")
SERVER_NAMES = {
    "api-start",
    "api-start-p99",
    "api-exec",
    "api-upload",
    "api-download",
    "api-upload-http",
    "api-upload-form",
    "api-download-http",
    "api-mass-create-p99",
    "api-mass-create-failures",
    "api-hold-memory",
    "api-hold-cpu",
}


@needs_namespaces
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap, a reference of the benchmarks, is not installed")
@pytest.mark.timeout(660)
@pytest.mark.parametrize(("benchmarks", "names"), [(QUICK, NAMES), pytest.param(SERVER, SERVER_NAMES, marks=pytest.mark.soak)])
def test_every_benchmark_measures_and_tells(benchmarks: tuple[str, ...], names: set[str]) -> None:
    pytest.importorskip("stable_baselines3")
    command = [sys.executable, "-m", "agentenv.cli.main", "bench", *benchmarks, "--scale", "0.001", "--json"]
    elsewhere = {**os.environ, "AGENTENV_RUNSC": "/no/such/runsc", "AGENTENV_FIRECRACKER": "/no/such/firecracker"}  # test_gvisor.py, …
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=elsewhere)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["name"] for row in rows if row["target"]} == names
    for row in rows:
        assert set(row) == {field.name for field in fields(Row)}
        assert row["n"] >= 1
        assert row["reference"]
        assert row["machine"]
        assert row["unit"] in ("ms", "steps/s", "MiB", "MB/s", "% of a core", "failures")
        assert (row["met"] is None) == (row["target"] is None)
        # Of a handful of sandboxes the machine's own breathing is larger, in either direction; and some figures have nothing beside them.
        if row["name"] != "density" and row["reference_value"] is not None:
            assert row["value"] > 0
            assert row["ratio"] == pytest.approx(row["value"] / row["reference_value"])
