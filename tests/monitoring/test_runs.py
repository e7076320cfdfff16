"""Runs' directories, how they are found, and what TrainingMonitor says of them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import InvalidState, NotFound
from agentenv.monitoring import RunDirectory, RunWriter, TrainingMonitor, find_run, list_runs
from agentenv.monitoring.files import read_json, write_json
from agentenv.monitoring.run_index import index_directory, register, registered
from agentenv.monitoring.training_monitor import measured_speed

TRAINER = """
import sys
from agentenv.monitoring import RunWriter
writer = RunWriter.create(max_steps=1000)
writer.log(100, return_mean=1.5, episodes=3, loss=0.25, steps_per_second=50.0)
print(writer.run.path, flush=True)
sys.stdin.read()
writer.finish()
"""


@contextlib.contextmanager
def trainer() -> Iterator[tuple[subprocess.Popen[str], RunDirectory]]:
    """Another process that writes a run until its stdin closes."""
    process = subprocess.Popen([sys.executable, "-c", TRAINER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, RunDirectory.open(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


def test_without_any_run_there_is_a_hint() -> None:
    metrics = TrainingMonitor().get_metrics()
    assert metrics["status"] == "no run"
    assert "agentenv train" in metrics["hint"]


SAMPLE = """
from agentenv.monitoring import TrainingMonitor
monitor = TrainingMonitor()
metrics = monitor.get_metrics()
print(f"Current training metrics: {metrics}")
"""


def test_four_lines_in_any_program() -> None:
    def printed() -> str:
        return subprocess.run([sys.executable, "-c", SAMPLE], capture_output=True, text=True, timeout=60, check=True).stdout

    assert printed().startswith("Current training metrics: {'status': 'no run'")
    with trainer() as (_, run):
        assert f"'run': '{run.id}'" in printed()
        assert "'status': 'live'" in printed()


def test_a_live_run_of_another_process() -> None:
    with trainer() as (process, run):
        metrics = TrainingMonitor().get_metrics()
        assert (metrics["status"], metrics["run"]) == ("live", run.id)
        assert (metrics["step"], metrics["max_steps"], metrics["progress"]) == (100, 1000, 0.1)
        assert (metrics["return_mean"], metrics["episodes"], metrics["loss"]) == (1.5, 3, 0.25)
        assert (metrics["steps_per_second"], metrics["eta_seconds"]) == (50.0, 18.0)
        assert json.loads(json.dumps(metrics)) == metrics
        with pytest.raises(InvalidState, match=f"being written by process {process.pid}"):
            RunWriter.resume(run)
        process.communicate("")
        assert TrainingMonitor().get_metrics()["status"] == "finished"


def test_a_killed_trainer_is_told_from_a_finished_one() -> None:
    with trainer() as (process, run):
        process.send_signal(signal.SIGKILL)
        process.wait()
        metrics = TrainingMonitor().get_metrics()
        assert metrics["status"] == "crashed"
        assert metrics["eta_seconds"] is None
        assert metrics["step"] == 100
        with RunWriter.resume(run) as again:
            assert run.status().live
            again.log(200, return_mean=2.0)
        assert TrainingMonitor().get_metrics()["step"] == 200
        assert run.status().max_steps == 1000


def test_the_live_run_comes_before_a_later_one() -> None:
    with trainer() as (_, live), RunWriter.create():
        pass
    with trainer() as (_, live):
        with RunWriter.create() as later:
            pass
        assert next(run.id for run, _ in list_runs()) == later.run.id
        assert TrainingMonitor().get_metrics()["run"] == live.id


def test_how_a_run_ends() -> None:
    with RunWriter.create(run_id="good") as writer:
        writer.write_manifest({"seed": 7})
        writer.finish(result={"return": 3.0})
    assert (writer.run.status().state, writer.run.result(), writer.run.manifest()) == ("finished", {"return": 3.0}, {"seed": 7})
    with pytest.raises(KeyboardInterrupt), RunWriter.create(run_id="stopped"):
        raise KeyboardInterrupt
    with pytest.raises(RuntimeError), RunWriter.create(run_id="broken"):
        raise RuntimeError("no more")
    assert {run.id: status.state for run, status in list_runs()} == {"good": "finished", "stopped": "interrupted", "broken": "failed"}
    assert find_run("broken").status().message == "RuntimeError: no more"


def test_the_first_end_counts() -> None:
    writer = RunWriter.create()
    writer.finish("interrupted", message="by Ctrl-C")
    writer.finish("failed")
    assert (writer.run.status().state, writer.run.status().message) == ("interrupted", "by Ctrl-C")


def test_an_existing_run_is_not_overwritten() -> None:
    with RunWriter.create(run_id="a"), pytest.raises(InvalidState, match="already a run"):
        RunWriter.create(run_id="a")


def test_two_runs_of_the_same_second_have_two_directories() -> None:
    with RunWriter.create() as first, RunWriter.create() as second:
        assert first.run.path != second.run.path


def test_asking_does_not_disturb_a_resume() -> None:
    writer = RunWriter.create()
    writer.finish()
    for _ in range(20):
        assert not writer.run.is_live()
        RunWriter.resume(writer.run).finish()
    assert writer.run.status().state == "finished"


def test_runs_are_found_from_elsewhere(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunWriter.create() as writer:
        pass
    elsewhere = workplace / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert find_run().path == writer.run.path
    assert find_run(writer.run.id[:10]).path == writer.run.path
    assert find_run("latest").path == find_run(writer.run.path).path == find_run(str(writer.run.path)).path
    assert list_runs(elsewhere) == []


def test_unknown_and_ambiguous_names() -> None:
    with pytest.raises(NotFound, match=r"there is no run\. `agentenv train"):
        find_run()
    for name in ("alpha-one", "alpha-two"):
        RunWriter.create(run_id=name).finish()
    with pytest.raises(NotFound, match="Did you mean alpha-one"):
        find_run("alpha-oen")
    with pytest.raises(NotFound, match="is the name of 2 runs"):
        find_run("alpha")
    with pytest.raises(NotFound, match="agentenv runs"):
        TrainingMonitor("zzz").get_metrics()
    with pytest.raises(NotFound, match="is not the directory of a run"):
        RunDirectory.open("nowhere")


def test_a_broken_run_does_not_hide_the_others(workplace: Path) -> None:
    RunWriter.create(run_id="good").finish()
    broken = workplace / "runs" / "broken"
    broken.mkdir()
    (broken / "status.json").write_text("{")
    (broken / "metrics.jsonl").write_bytes(b'\xff\n{"step": 5}\n[1]\n{"st')
    assert {run.id: status.state for run, status in list_runs()} == {"good": "finished", "broken": "unreadable"}
    assert TrainingMonitor("broken").get_metrics()["step"] == 5


def test_the_index_drops_what_is_gone(workplace: Path) -> None:
    run = workplace / "somewhere" / "run"
    run.mkdir(parents=True)
    assert register(run)
    assert register(run)
    assert registered() == [run]
    run.rmdir()
    assert registered() == []
    assert list(index_directory().iterdir()) == []


def test_a_home_that_cannot_be_written_to_is_no_obstacle(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workplace / "file").touch()
    monkeypatch.setenv("AGENTENV_HOME", str(workplace / "file"))
    RunWriter.create(run_id="a").finish()
    assert find_run().id == "a"


def test_the_latest_known_value_of_each_metric() -> None:
    with RunWriter.create(max_steps=10) as writer:
        writer.log(1, loss=0.5, custom=1)
        writer.log(2, return_mean=4.0, loss=None)
        metrics = TrainingMonitor(writer.run.path).get_metrics()
    assert (metrics["step"], metrics["loss"], metrics["custom"], metrics["return_mean"]) == (2, 0.5, 1, 4.0)
    assert [row["step"] for row in TrainingMonitor().history()] == [1, 2]


def test_speed_from_the_rows_themselves() -> None:
    assert measured_speed([{"time": 10.0, "step": 0}, {"time": 12.0, "step": 100}]) == 50.0
    assert measured_speed([{"time": 10.0, "step": 0}]) is None
    assert measured_speed([{"time": 10.0, "step": 5}, {"time": 10.0, "step": 6}]) is None
    assert measured_speed([{"step": 5}, {"time": "x", "step": 6}]) is None


def test_json_files_are_replaced_as_a_whole(workplace: Path) -> None:
    file = workplace / "a.json"
    assert read_json(file) is None
    write_json(file, {"a": 1})
    with pytest.raises(TypeError):
        write_json(file, {"a": object()})
    assert read_json(file) == {"a": 1}
    assert list(workplace.iterdir()) == [file]
