"""`agentenv train`, `evaluate` and `reproduce` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.train.doubles import lanes, settings
from typer.testing import CliRunner, Result

import agentenv.train.assess
import agentenv.train.pipeline
import agentenv.train.repetition
from agentenv.cli.main import app
from agentenv.isolation.contract import Capabilities, Probe


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder to work in, and environments without sandboxes behind the commands."""
    monkeypatch.setenv("AGENTENV_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for module, function in (
        (agentenv.train.pipeline, "train"),
        (agentenv.train.assess, "evaluate"),
        (agentenv.train.repetition, "reproduce"),
    ):
        original = getattr(module, function)
        monkeypatch.setitem(original.__kwdefaults__, "make_envs", lanes())


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def configured(tmp_path: Path, **training: Any) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings(**training)))
    return path


def only_run(tmp_path: Path) -> Path:
    [run] = (tmp_path / "runs").iterdir()
    return run


def test_a_configuration_is_trained_and_the_last_lines_say_what_came_of_it(tmp_path: Path) -> None:
    result = invoke("train", configured(tmp_path), "--max-steps", 128, "--num-envs", 1, "--seed", 9)
    assert result.exit_code == 0, result.output
    run = only_run(tmp_path)
    done, where = result.output.splitlines()[-2:]
    assert done.startswith("Done: PPO on switches: 128 steps in ")
    assert "evaluated return" in done
    assert "of the optimal" in done
    assert where.startswith(f"Results: {run} (curve.png")
    recorded = json.loads((run / "manifest.json").read_text())["config"]["training"]
    assert (recorded["max_steps"], recorded["num_envs"], recorded["seed"]) == (128, 1, 9)


def test_json_lines_begin_and_end(tmp_path: Path) -> None:
    result = invoke("train", configured(tmp_path), "--max-steps", 64, "--json", "--run-dir", tmp_path / "else")
    events = [json.loads(line) for line in result.output.splitlines()]
    assert events[0]["event"] == "begin"
    assert events[-1]["event"] == "end"
    assert Path(events[-1]["run"]).parent == tmp_path / "else"


def test_a_run_goes_on_with_more_steps_by_name(tmp_path: Path) -> None:
    invoke("train", configured(tmp_path), "--max-steps", 64)
    result = invoke("train", "--resume", "latest", "--max-steps", 192)
    assert result.exit_code == 0, result.output
    assert "Going on from step 64" in result.output
    assert json.loads((only_run(tmp_path) / "result.json").read_text())["steps"] == 192


def test_an_interrupted_training_exits_as_such_and_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(agentenv.train.pipeline.train.__kwdefaults__, "stop_at", 64)
    result = invoke("train", configured(tmp_path))
    assert result.exit_code == 130
    assert result.output.splitlines()[-1] == f"Everything is saved. Go on with: agentenv train --resume {only_run(tmp_path)}"


def test_a_run_is_evaluated(tmp_path: Path) -> None:
    invoke("train", configured(tmp_path), "--max-steps", 64)
    result = invoke("evaluate", "latest", "--episodes", 6)
    assert "at step 64: mean return" in result.output
    assert "over 6 episodes" in result.output
    figures = json.loads(invoke("evaluate", only_run(tmp_path), "--checkpoint", 64, "--json").output)
    assert figures["policy"]["episodes"] == 4
    assert figures["random"]["mean_return"] != figures["policy"]["mean_return"]


def test_a_run_is_reproduced(tmp_path: Path) -> None:
    invoke("train", configured(tmp_path), "--max-steps", 64)
    result = invoke("reproduce", only_run(tmp_path), "--run-dir", tmp_path / "again")
    assert result.exit_code == 0, result.output
    assert "Reproduced exactly" in result.output


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ({"algorithm": "SAC"}, "SAC needs continuous actions (Box), but this environment's actions are Discrete(4)."),
        ({"hyperparameters": {"gama": 1}}, "training.hyperparameters.gama: PPO has no such hyperparameter; did you mean gamma?"),
    ],
)
def test_what_is_wrong_is_one_sentence(training: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", str(configured(tmp_path, **training))])
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert "Traceback" not in result.output


def test_a_missing_file_or_run_is_named(tmp_path: Path) -> None:
    assert "nothing.yaml" in invoke("train", "nothing.yaml").stderr
    assert "there is no run" in invoke("evaluate").stderr
    assert "nothing to train" in invoke("train").stderr


def test_what_this_machine_does_not_allow_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weak = Probe("namespace", usable=True, version=None, capabilities=Capabilities(lost=("memory: none.", "cpu: none.")))
    monkeypatch.setattr("agentenv.isolation.probe_all", lambda: [weak])
    result = invoke("train", configured(tmp_path), "--max-steps", 64)
    assert result.output.count("weaker on this machine than they could be, in 2 respects; `agentenv doctor`") == 1
    assert "weaker" not in invoke("train", configured(tmp_path), "--max-steps", 64, "--json").output
