"""A training on the server's machine, seen from elsewhere."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.server.conftest import RunningServer, StartServer

from agentenv.errors import CapabilityError, ConfigError, Forbidden, InfrastructureError, NotFound, Unauthenticated
from agentenv.monitoring import RunWriter, TrainingMonitor
from agentenv.server.access import Role


@pytest.fixture
def watched(start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    monkeypatch.setenv("AGENTENV_HOME", str(tmp_path / "home"))
    return start_server({"runs": str(tmp_path / "runs")})


def test_a_run_is_the_same_from_here_and_from_elsewhere(watched: RunningServer, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    far = TrainingMonitor(server=watched.url, api_key=watched.key)
    assert far.get_metrics()["status"] == "no run"
    with RunWriter.create(runs, run_id="one", max_steps=100) as writer:
        writer.log(10, loss=0.5, return_mean=1.0)
        writer.write_prometheus("agentenv_environment_steps_total 3\n")
        assert far.get_metrics()["status"] == "live"
        writer.log(50, loss=0.25, extra=7)
    near = TrainingMonitor("one", runs)
    assert far.get_metrics() == near.get_metrics()
    assert far.history() == near.history() == list(far.follow()) == list(near.follow())
    assert far.prometheus() == near.prometheus()
    assert far.get_metrics()["extra"] == 7


def test_a_training_is_followed_until_its_end(watched: RunningServer, tmp_path: Path) -> None:
    first = threading.Event()
    with RunWriter.create(tmp_path / "runs", run_id="two") as writer:
        writer.log(1, loss=1.0)

        def finish() -> None:
            first.wait(60)
            writer.log(2, loss=0.5)
            writer.finish()

        rest = threading.Thread(target=finish)
        rest.start()
        steps = []
        for row in TrainingMonitor("two", server=watched.url, api_key=watched.key).follow():
            steps.append(row["step"])
            first.set()
        rest.join()
    assert steps == [1, 2]


def test_the_list_has_what_was_run(watched: RunningServer, tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "runs", run_id="three", max_steps=10) as writer:
        writer.write_manifest({"config": {"training": {"algorithm": "SAC"}}})
        writer.log(5, return_mean=2.5)
    with watched.client() as client:
        [run] = client.get("/runs").json()
        assert (run["id"], run["status"], run["algorithm"], run["progress"], run["return_mean"]) == ("three", "finished", "SAC", 0.5, 2.5)
        assert [row["step"] for row in client.get("/runs/three/metrics", params={"start": 1}).json()] == []
        assert client.get("/runs/..%2Fthree").status_code == 404


def test_what_goes_wrong_is_told(watched: RunningServer, tmp_path: Path) -> None:
    _, [other] = watched.new_tenant("no-operator", Role.ADMIN)
    with pytest.raises(NotFound, match="there is no run 'none'"):
        TrainingMonitor("none", server=watched.url, api_key=watched.key).get_metrics()
    with pytest.raises(Unauthenticated):
        TrainingMonitor(server=watched.url, api_key="wrong").get_metrics()
    with pytest.raises(Forbidden):
        TrainingMonitor(server=watched.url, api_key=other).get_metrics()
    with pytest.raises(Forbidden):
        next(TrainingMonitor(server=watched.url, api_key=other).follow())
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        TrainingMonitor(server="http://127.0.0.1:1", api_key="any").history()
    with pytest.raises(CapabilityError):
        TrainingMonitor(server=watched.url, api_key=watched.key).find()
    with pytest.raises(ConfigError):
        TrainingMonitor(server="127.0.0.1:1", api_key="any")
