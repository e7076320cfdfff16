"""`agentenv monitor` and `agentenv runs`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable

import pytest

from agentenv.cli.plot import plot, sparkline
from agentenv.monitoring import RunDirectory, RunWriter

Agentenv = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run() -> RunDirectory:
    """A finished run of twenty rows."""
    with RunWriter.create(run_id="rising", max_steps=2000) as writer:
        writer.write_manifest({"seed": 7, "config": {"training": {"algorithm": "PPO"}}})
        for index in range(20):
            writer.log(index * 100, return_mean=float(index), episodes=index, loss=1 / (index + 1), steps_per_second=1234.0)
        writer.write_prometheus('# TYPE agentenv_environment_steps counter\nagentenv_environment_steps_total{environment="e"} 2000.0\n')
        writer.events.emit("training.checkpoint", step=1900, path="checkpoints/1900")
        writer.finish(result={"return": 19.0})
    return writer.run


def test_once(agentenv: Agentenv, run: RunDirectory) -> None:
    shown = agentenv("monitor", "--once").stdout
    assert "run rising  finished" in shown
    assert "step 1,900 of 2,000   1,234 steps/s" in shown
    assert "mean return" in shown
    assert re.search(r"[⠁-⣿]", shown)
    assert "training.checkpoint" in shown
    assert str(run.path) in shown


def test_json_and_the_name_of_a_run(agentenv: Agentenv, run: RunDirectory) -> None:
    metrics = json.loads(agentenv("monitor", "ris", "--json").stdout)
    assert (metrics["run"], metrics["status"], metrics["step"], metrics["return_mean"]) == ("rising", "finished", 1900, 19.0)


def test_json_follows_a_live_run_to_its_end() -> None:
    writer = RunWriter.create(max_steps=10)
    writer.log(1)
    command = [sys.executable, "-m", "agentenv.cli.main", "monitor", "--json", "--interval", "0.05"]
    monitor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert monitor.stdout is not None
    assert json.loads(monitor.stdout.readline())["status"] == "live"
    writer.log(2)
    writer.finish()
    output, _ = monitor.communicate(timeout=60)
    last = json.loads(output.splitlines()[-1])
    assert (last["status"], last["step"], monitor.returncode) == ("finished", 2, 0)


def test_without_a_run(agentenv: Agentenv) -> None:
    done = agentenv("monitor")
    assert (done.returncode, done.stdout) == (0, "there is no run. `agentenv train CONFIG` starts one.\n")
    assert json.loads(agentenv("monitor", "--json").stdout)["status"] == "no run"
    assert agentenv("runs").stdout == "There is no run yet. `agentenv train CONFIG` starts one.\n"
    assert json.loads(agentenv("runs", "--json").stdout) == []


def test_prometheus_text(agentenv: Agentenv, run: RunDirectory) -> None:
    text = agentenv("monitor", "--prometheus").stdout
    assert f'agentenv_training_step{{run="{run.id}"}} 1900.0' in text
    assert "# HELP agentenv_training_step " in text
    assert 'agentenv_environment_steps_total{environment="e"} 2000.0' in text
    assert text.count("# TYPE agentenv_environment_steps ") == 1
    assert re.search(r'^agentenv_node_snapshots\{node="[^"]+"\} 0.0', text, re.MULTILINE)
    assert re.search(r'^agentenv_node_cores\{node="[^"]+"\} \d', text, re.MULTILINE)


def test_prometheus_on_a_port(run: RunDirectory) -> None:
    command = [sys.executable, "-m", "agentenv.cli.main", "monitor", "--prometheus", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/metrics", line)
        assert url, line
        body = urllib.request.urlopen(url[0], timeout=30).read().decode()
        assert f'agentenv_training_step{{run="{run.id}"}} 1900.0' in body
    finally:
        server.kill()
        server.communicate()


def test_a_table_of_runs(agentenv: Agentenv, run: RunDirectory) -> None:
    header, row = agentenv("runs").stdout.splitlines()
    assert header.split() == ["RUN", "STATE", "STARTED", "STEPS", "RETURN", "STEPS/S", "TOOK", "IN"]
    assert row.startswith("rising finished ")
    assert "1.9k/2k" in row
    assert row.split()[-1] == "runs"
    (data,) = json.loads(agentenv("runs", "--json").stdout)
    assert data["directory"] == str(run.path)


def test_show(agentenv: Agentenv, run: RunDirectory) -> None:
    data = json.loads(agentenv("runs", "show", "rising", "--json").stdout)
    assert (data["manifest"]["seed"], data["result"], data["checkpoints"]) == (7, {"return": 19.0}, [])
    assert data["files"]["metrics"] == str(run.metrics_file)
    assert "algorithm: PPO" in agentenv("runs", "show").stdout


def test_plot_draws_from_the_lower_left_to_the_upper_right() -> None:
    lines = plot([(float(x), float(x)) for x in range(100)], 40, 4)
    assert [len(line) for line in lines] == [40] * 4
    assert lines[0].startswith("99 ┤")
    assert lines[-1].startswith(" 0 ┤")
    assert lines[0][-1] != "\u2800"
    assert lines[-1][4] != "\u2800"
    assert lines[0][4] == "\u2800"


@pytest.mark.parametrize("points", [[], [(0.0, 1.0)], [(0.0, 1.0), (0.0, 1.0)], [(1.0, 5.0), (2.0, 5.0)]])
def test_plot_of_little(points: list[tuple[float, float]]) -> None:
    lines = plot(points, 40, 3)
    assert len(lines) == (3 if points else 0)


def test_sparkline() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 7, 7], 2) == "▁█"
    assert sparkline([3], 5) == "▁"
    assert sparkline([], 5) == ""
