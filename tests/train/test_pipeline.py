"""Whole trainings: what they write, how they stop, and that going on is as if they had never stopped."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.conditions import more_in_soak
from tests.train.doubles import Failing, ScoredSwitches, Switches, UnsavableVectorEnv, lanes, settings

import agentenv
from agentenv.errors import AgentEnvError, CapabilityError, ConfigError, InfrastructureError, NotFound
from agentenv.monitoring import RunDirectory, TrainingMonitor
from agentenv.train import RunResult, SilentProgress, train
from agentenv.train.metrics_file import forget_after
from agentenv.train.progress import Standing

WALL_CLOCK = {"time", "steps_per_second"}


def run(tmp_path: Path, config: Any = None, **arguments: Any) -> RunResult:
    arguments.setdefault("make_envs", lanes())
    arguments.setdefault("progress", SilentProgress())
    return train(config, run_dir=tmp_path, **arguments)


def rows(result: RunResult) -> list[dict[str, Any]]:
    """The metrics without what depends on the clock."""
    return [{key: value for key, value in row.items() if key not in WALL_CLOCK} for row in RunDirectory.open(result.run).metrics()]


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("AGENTENV_HOME", str(tmp_path_factory.mktemp("home")))


def test_a_training_learns_and_leaves_everything_in_its_directory(tmp_path: Path) -> None:
    config = settings(max_steps=5000, eval_every=2000, learning_rate=0.01, hyperparameters={"n_epochs": 5, "gamma": 0.5, "n_steps": 64})
    result = run(tmp_path, config)
    assert result.state == "finished"
    assert result.steps >= 5000
    assert result.fraction_of_optimal is not None
    assert result.fraction_of_optimal > 0.9 > result.random_return / (result.optimal_return or math.nan)
    directory = RunDirectory.open(result.run)
    assert directory.status().state == "finished"
    assert directory.result() == result.to_dict()
    assert directory.curve_file.read_bytes().startswith(b"\x89PNG")
    assert list(directory.tensorboard.glob("events.out.tfevents.*"))
    assert [path.name for path in directory.checkpoints.iterdir()] == [result.checkpoint.name]
    evaluated = [row["step"] for row in directory.metrics() if "eval_return" in row]
    assert evaluated == sorted(set(evaluated))
    assert evaluated[0] == 0
    assert evaluated[-1] == result.steps
    assert {event["event"] for event in directory.events()} >= {"training.evaluated", "training.checkpoint"}


def test_the_manifest_says_what_was_run_with_what_and_where(tmp_path: Path) -> None:
    result = run(tmp_path, settings(seed=None, max_steps=64))
    manifest = RunDirectory.open(result.run).manifest()
    seed = manifest["seeds"]["training"]
    assert manifest["config"]["training"]["seed"] == seed
    assert agentenv.load(manifest["config"]).digest() == manifest["config_sha256"]
    assert set(manifest["versions"]) == {"python", "agentenv", "torch", "stable-baselines3", "gymnasium", "numpy"}
    assert manifest["machine"]["cores"] >= 1
    assert any("in 2 minibatches of 32" in sentence for sentence in manifest["explanations"])


def test_the_monitor_finds_the_figures(tmp_path: Path) -> None:
    result = run(tmp_path, settings(max_steps=256))
    metrics = TrainingMonitor(result.run).get_metrics()
    assert metrics["status"] == "finished"
    assert metrics["step"] == 256
    assert metrics["progress"] == 0.5 or metrics["max_steps"] == 256
    for name in ("return_mean", "loss", "steps_per_second", "learning_rate", "episodes", "eval_return"):
        assert isinstance(metrics[name], (int, float)), name


def test_what_the_training_process_counts_is_there_for_prometheus(tmp_path: Path) -> None:
    result = run(tmp_path, settings(max_steps=256))
    text = TrainingMonitor(result.run).prometheus()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    counted = {(sample.name, sample.labels.get("environment")): sample.value for sample in samples}
    assert counted["agentenv_environment_steps_total", "switches"] == 256
    assert counted["agentenv_environment_step_seconds_count", "switches"] == 128
    assert counted["agentenv_environment_steps_total", "switches (evaluation)"] > 0


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    one, other = run(tmp_path, settings()), run(tmp_path, settings())
    assert one.parameters == other.parameters
    assert rows(one) == rows(other)
    assert run(tmp_path, settings(), seed=4).parameters != one.parameters


@pytest.mark.parametrize("name", more_in_soak(["PPO", "DQN"], ["A2C", "SAC"]))
def test_an_interrupted_and_resumed_run_is_the_run_it_would_have_been(name: str, tmp_path: Path) -> None:
    make_envs = lanes(ScoredSwitches if name == "SAC" else Switches)
    learning_rate = {"schedule": "cosine", "initial": 0.003, "warmup": 0.1}
    config = settings(name, eval_every=100, max_steps=320, learning_rate=learning_rate)
    whole = run(tmp_path, config, make_envs=make_envs)
    part = run(tmp_path, config, make_envs=make_envs, stop_at=100)
    assert part.state == "interrupted"
    assert 100 <= part.steps < 320
    assert RunDirectory.open(part.run).status().state == "interrupted"
    again = run(tmp_path, resume=part.run, make_envs=make_envs, stop_at=200)
    assert 200 <= again.steps < 320
    rest = run(tmp_path, resume=part.run, make_envs=make_envs)
    assert rest.run == part.run
    assert rest.steps == whole.steps
    assert rest.parameters == whole.parameters
    assert rest.episodes == whole.episodes
    assert rows(rest) == rows(whole)


@pytest.mark.parametrize("name", more_in_soak(["PPO"], ["SAC", "A2C"]))
def test_state_dependent_exploration_is_resumed_exactly_too(name: str, tmp_path: Path) -> None:
    make_envs = lanes(ScoredSwitches)
    config = settings(name, max_steps=192, hyperparameters={"use_sde": True, "sde_sample_freq": 5})
    whole = run(tmp_path, config, make_envs=make_envs)
    part = run(tmp_path, config, make_envs=make_envs, stop_at=100)
    rest = run(tmp_path, resume=part.run, make_envs=make_envs)
    assert rest.parameters == whole.parameters
    assert rows(rest) == rows(whole)
    longer = run(tmp_path, resume=rest.run, make_envs=make_envs, max_steps=256)
    assert longer.parameters == run(tmp_path, config, make_envs=make_envs, max_steps=256).parameters


def test_a_resume_takes_back_what_was_measured_after_the_checkpoint(tmp_path: Path) -> None:
    whole = run(tmp_path, settings())
    part = run(tmp_path, settings(), stop_at=200)
    with (part.run / "metrics.jsonl").open("a") as file:
        file.write('{"step":9999,"time":1.0,"return_mean":-7.0}\n{"step":10')
    rest = run(tmp_path, resume=part.run)
    assert rows(rest) == rows(whole)


def test_forgetting_keeps_what_lies_before(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1}\n{"step":5,"a":1}\n{"step":5,"b":1}\n{"step":9}\n{"step":5}\n')
    forget_after(path, 5)
    assert path.read_text().splitlines() == ['{"step":1}', '{"step":5,"a":1}', '{"step":5,"b":1}']


def test_an_environment_that_cannot_be_saved_is_resumed_with_new_episodes_and_says_so(tmp_path: Path) -> None:
    make_envs = lanes(vector=UnsavableVectorEnv)
    said: list[str] = []

    class Listening(SilentProgress):
        def say(self, sentence: str) -> None:
            said.append(sentence)

    part = run(tmp_path, settings(), make_envs=make_envs, stop_at=200)
    rest = run(tmp_path, resume=part.run, make_envs=make_envs, progress=Listening())
    assert rest.state == "finished"
    assert any("switches cannot save an episode under way" in sentence for sentence in said)
    assert RunDirectory.open(rest.run).manifest()["sessions"][0]["exact"] is False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_update_saves_and_says_how_to_go_on(number: signal.Signals, tmp_path: Path) -> None:
    ended: list[str] = []
    before = signal.getsignal(number)

    class Interrupting(SilentProgress):
        def update(self, standing: Standing) -> None:
            if standing.step > 0 and not sent:
                sent.append(standing.step)
                os.kill(os.getpid(), number)

        def end(self, lines: Any, result: Any) -> None:
            ended.extend(lines)

    sent: list[int] = []
    part = run(tmp_path, settings(max_steps=100_000), progress=Interrupting())
    assert part.state == "interrupted"
    assert part.steps % 64 == 0
    assert part.steps - sent[0] <= 64
    assert any(line.endswith(f"agentenv train --resume {part.run}") for line in ended)
    assert signal.getsignal(number) is before
    assert run(tmp_path, resume=part.run, max_steps=part.steps + 64).state == "finished"


def test_a_second_signal_stops_at_once_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    class Impatient(SilentProgress):
        def update(self, standing: Standing) -> None:
            if standing.step >= 200:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, settings(max_steps=10**6, checkpoint_every=64), progress=Impatient())
    [left] = RunDirectory.within(tmp_path)
    assert left.status().state == "interrupted"
    assert sorted(left.checkpoints.glob("step-*.pt"))


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    result = run(tmp_path, settings(checkpoint_every=64))
    names = sorted(path.name for path in (result.run / "checkpoints").iterdir())
    assert names == ["step-000000000384.pt", "step-000000000448.pt", "step-000000000512.pt"]


def test_failing_sandboxes_are_reported_and_leave_no_trace_in_what_is_learned(tmp_path: Path) -> None:
    def make_envs(environment: Any, count: int, events: Any) -> Any:
        plain = lanes()(environment, count, events)
        return Failing(plain, {(10, 0), (40, 1)}) if count == 2 else plain

    said: list[str] = []

    class Listening(SilentProgress):
        def say(self, sentence: str) -> None:
            said.append(sentence)

    for name in ("PPO", "A2C", "DQN"):
        result = run(tmp_path, settings(name, eval_episodes=1), make_envs=make_envs, progress=Listening())
        assert result.infra_errors == 2
        assert result.state == "finished"
        assert all(math.isfinite(value) for row in rows(result) for value in row.values() if isinstance(value, float))
        events = [event for event in RunDirectory.open(result.run).events() if event["event"] == "training.infra_error"]
        assert [event["lane"] for event in events] == [0, 1]
    told = "The sandbox of environment 0 failed and was replaced; its step is left out: sandbox x died: killed."
    assert said.count(told) == 3


def test_a_failure_marks_the_run_and_points_to_its_checkpoint(tmp_path: Path) -> None:
    class Dying(Switches):
        left = 600

        def step(self, action: Any) -> Any:
            Dying.left -= 1
            if not Dying.left:
                raise InfrastructureError("no sandbox can be started any more.")
            return super().step(action)

    said: list[str] = []

    class Listening(SilentProgress):
        def say(self, sentence: str) -> None:
            said.append(sentence)

    with pytest.raises(InfrastructureError):
        run(tmp_path, settings(max_steps=2000, checkpoint_every=64), make_envs=lanes(Dying), progress=Listening())
    [left] = RunDirectory.within(tmp_path)
    assert left.status().state == "failed"
    assert "no sandbox can be started any more" in (left.status().message or "")
    assert any(sentence.endswith(f"Go on with: agentenv train --resume {left.path}") for sentence in said)


def test_what_does_not_fit_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="SAC needs continuous actions"):
        run(tmp_path, settings("SAC"))
    with pytest.raises(NotFound, match="no algorithm 'PPP'"):
        run(tmp_path, settings() | {"training": {"algorithm": "PPP", "max_steps": 10}})
    with pytest.raises(ConfigError, match="no `training` section"):
        run(tmp_path, {"environment": {"name": "switches"}})
    with pytest.raises(ConfigError, match="nothing to train"):
        run(tmp_path)
    with pytest.raises(CapabilityError, match=r"distributed_training\.enabled"):
        run(tmp_path, settings() | {"distributed_training": {"enabled": True}})


def test_a_run_goes_on_only_as_what_it_was(tmp_path: Path) -> None:
    part = run(tmp_path, settings(), stop_at=100)
    with pytest.raises(ConfigError, match="begun with num_envs 2, so it cannot go on with 3"):
        run(tmp_path, resume=part.run, num_envs=3)
    with pytest.raises(ConfigError, match="begun with seed 3"):
        run(tmp_path, resume=part.run, seed=5)
    with pytest.raises(ConfigError, match="not the one that run"):
        run(tmp_path, settings(batch_size=16), resume=part.run)
    longer = run(tmp_path, settings(), resume=part.run, max_steps=640)
    assert longer.steps == 640
    assert RunDirectory.open(part.run).manifest()["config"]["training"]["max_steps"] == 640


def test_a_run_without_a_checkpoint_or_manifest_cannot_go_on(tmp_path: Path) -> None:
    part = run(tmp_path, settings(), stop_at=100)
    for saved in (part.run / "checkpoints").iterdir():
        saved.unlink()
    with pytest.raises(NotFound, match="has no checkpoint yet"):
        run(tmp_path, resume=part.run)
    (part.run / "manifest.json").write_text(json.dumps({}))
    with pytest.raises(NotFound, match="no manifest with a configuration"):
        run(tmp_path, resume=part.run)


def test_the_package_itself_can_be_called(tmp_path: Path) -> None:
    result = agentenv.train(settings(max_steps=64), run_dir=tmp_path, make_envs=lanes(), progress=SilentProgress())
    assert isinstance(result, RunResult)


def test_without_the_extra_there_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name}", name="torch")

    monkeypatch.setattr("agentenv.train.import_module", missing)
    with pytest.raises(AgentEnvError, match=r"training needs torch, which is not installed\. Run: pip install 'agentenv\[train\]'"):
        agentenv.train.__getattr__("train")
