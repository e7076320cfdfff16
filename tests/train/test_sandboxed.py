"""Trainings whose environments live in real sandboxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conditions import more_in_soak
from tests.train.doubles import settings

from agentenv.isolation import probe_all
from agentenv.monitoring import RunDirectory
from agentenv.train import RunResult, SilentProgress, evaluate, train
from agentenv.train.environments import sandboxed
from agentenv.train.progress import Standing

CLOCK = {"time", "steps_per_second"}


@pytest.fixture(autouse=True)
def _sandboxes(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    probes = probe_all()
    if not any(probe.usable for probe in probes):
        pytest.skip(f"no backend is usable here: {'; '.join(f'{probe.backend}: {probe.reason}' for probe in probes)}")
    monkeypatch.setenv("AGENTENV_HOME", str(tmp_path_factory.mktemp("home")))


def config(name: str = "basic_rl_env", **training: Any) -> dict[str, Any]:
    return settings(max_steps=192, eval_episodes=2, **training) | {"environment": {"name": name}}


def run(tmp_path: Path, given: Any = None, **arguments: Any) -> RunResult:
    return train(given, run_dir=tmp_path, **({"progress": SilentProgress()} | arguments))


def rows(result: RunResult) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in CLOCK} for row in RunDirectory.open(result.run).metrics()]


@pytest.mark.parametrize("name", more_in_soak(["basic_rl_env"], ["gymnasium:CartPole-v1"]))
def test_a_run_in_sandboxes_is_resumed_exactly(name: str, tmp_path: Path) -> None:
    whole = run(tmp_path, config(name))
    assert (whole.optimal_return is not None) == (name == "basic_rl_env")
    part = run(tmp_path, config(name), stop_at=100)
    rest = run(tmp_path, resume=part.run)
    assert RunDirectory.open(rest.run).manifest()["sessions"][0]["exact"]
    assert rest.parameters == whole.parameters
    assert rows(rest) == rows(whole)
    assert evaluate(rest.run, num_envs=1).policy.mean_return == whole.final_return


def test_a_sandbox_that_dies_is_replaced_and_its_step_left_out(tmp_path: Path) -> None:
    opened: list[Any] = []

    def make_envs(*arguments: Any) -> Any:
        opened.append(sandboxed(*arguments))
        return opened[-1]

    class Killing(SilentProgress):
        killed = False

        def update(self, standing: Standing) -> None:
            if not self.killed:
                self.killed = True
                opened[0].sandboxes[1].kill()

    result = run(tmp_path, config(), make_envs=make_envs, progress=Killing())
    assert result.state == "finished"
    assert result.infra_errors == 1
    events = [event for event in RunDirectory.open(result.run).events() if event["event"] == "training.infra_error"]
    assert [event["lane"] for event in events] == [1]
    assert events[0]["error"]
