"""A run made again from its manifest, and evaluated at its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.train.doubles import lanes, settings

from agentenv.errors import NotFound
from agentenv.train import RunResult, SilentProgress, evaluate, reproduce, train
from agentenv.train.manifest import differences, git_state


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTENV_HOME", str(tmp_path / "home"))


def finished(tmp_path: Path, **arguments: Any) -> RunResult:
    config = settings(max_steps=256, eval_every=128, checkpoint_every=128)
    return train(config, run_dir=tmp_path / "runs", make_envs=lanes(), progress=SilentProgress(), **arguments)


def again(result: RunResult) -> Any:
    return reproduce(result.run, make_envs=lanes(), progress=SilentProgress())


def test_a_run_is_reproduced_to_the_last_bit(tmp_path: Path) -> None:
    result = finished(tmp_path)
    found = again(result)
    assert found.same
    assert found.same_parameters
    assert found.evaluations_compared == 3
    assert found.repetition != result.run
    assert found.lines()[0] == "Reproduced exactly: the same parameters and the same 3 evaluations."


def test_a_run_that_was_interrupted_is_reproduced_as_far_as_it_came(tmp_path: Path) -> None:
    result = finished(tmp_path, stop_at=128)
    found = again(result)
    assert found.same
    assert json.loads((found.repetition / "result.json").read_text())["steps"] == result.steps


def test_a_difference_is_found_and_measured(tmp_path: Path) -> None:
    result = finished(tmp_path)
    recorded = json.loads((result.run / "result.json").read_text()) | {"parameters": "0" * 64}
    (result.run / "result.json").write_text(json.dumps(recorded))
    lines = (result.run / "metrics.jsonl").read_text().splitlines()
    first = next(index for index, line in enumerate(lines) if "eval_return" in line)
    lines[first] = json.dumps(json.loads(lines[first]) | {"eval_return": 1000.0})
    (result.run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = again(result)
    assert not found.same
    assert found.largest_difference > 900
    assert found.lines()[0].startswith("Not the same: parameters differ, evaluations differ by up to")


def test_other_versions_are_a_warning(tmp_path: Path) -> None:
    result = finished(tmp_path)
    path = result.run / "manifest.json"
    recorded = json.loads(path.read_text())
    recorded["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(recorded))
    assert again(result).warnings[0].startswith("torch: 1.0 then, ")


def test_a_run_without_a_result_cannot_be_compared(tmp_path: Path) -> None:
    result = finished(tmp_path)
    (result.run / "result.json").unlink()
    with pytest.raises(NotFound, match="no result to compare with"):
        again(result)


def test_an_evaluation_repeats_the_runs_last_one(tmp_path: Path) -> None:
    result = finished(tmp_path)
    found = evaluate(result.run, make_envs=lanes())
    assert found.step == 256
    assert found.policy.mean_return == result.final_return
    assert found.chance.optimal == found.policy.optimal, "both played the same episodes"
    more = evaluate(result.run, episodes=9, num_envs=3, seed=1, make_envs=lanes())
    assert len(more.policy.returns) == 9


def test_any_checkpoint_can_be_evaluated(tmp_path: Path) -> None:
    result = finished(tmp_path)
    by_step = evaluate(result.run, checkpoint_at=128, make_envs=lanes())
    assert by_step.step == 128
    by_file = evaluate(result.run, checkpoint_at=result.run / "checkpoints" / "step-000000000128.pt", make_envs=lanes())
    assert by_file.policy == by_step.policy
    with pytest.raises(NotFound, match=r"no checkpoint 7; there are: step-000000000128\.pt, step-000000000256\.pt"):
        evaluate(result.run, checkpoint_at="7", make_envs=lanes())


def test_differences_are_phrases() -> None:
    assert differences({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == ["b: 2 then, 3 now", "c: None then, 4 now"]


def test_outside_a_repository_there_is_no_commit(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
