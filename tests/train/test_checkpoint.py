"""Checkpoints: whole or absent, plain data only."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.doubles import ScoredSwitches, Switches, lanes, settings

from agentenv.config import load
from agentenv.errors import AgentEnvError, NotFound
from agentenv.train import GymnasiumVecEnv, algorithm, checkpoint
from agentenv.train.learner import build


def parts(name: str = "PPO", **training: Any) -> tuple[Any, GymnasiumVecEnv]:
    section = load(settings(name, **training)).training
    assert section is not None
    envs = GymnasiumVecEnv(lanes(ScoredSwitches if name == "SAC" else Switches)(None, 2, None))
    return build(algorithm(name), section, envs, 1).model, envs


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """A nested state as a flat mapping that can be compared."""
    if isinstance(value, dict):
        return {key: item for name, nested in value.items() for key, item in flat(nested, f"{prefix}/{name}").items()}
    if isinstance(value, (list, tuple)):
        return {key: item for index, nested in enumerate(value) for key, item in flat(nested, f"{prefix}/{index}").items()}
    return {prefix: value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value}


@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN", "SAC"])
def test_what_is_restored_is_what_was_captured(name: str, tmp_path: Path) -> None:
    model, envs = parts(name)
    model.learn(128)
    before = checkpoint.capture(model, envs, {"seconds": 1.5, "evaluations": [[0, 1.0, None]]})
    checkpoint.write(before, tmp_path / "one.pt")
    other, other_envs = parts(name)
    found = checkpoint.restore(other, other_envs, checkpoint.read(tmp_path / "one.pt"))
    assert found.exact
    assert found.step == 128
    assert found.notes["evaluations"] == [[0, 1.0, None]]
    assert flat(checkpoint.capture(other, other_envs, before["notes"])) == flat(before)
    assert checkpoint.fingerprint(other) == checkpoint.fingerprint(model)


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"format": 1, "parameters": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pt", "pickle.pt"):
        with pytest.raises(AgentEnvError, match="cannot be read as a checkpoint"):
            checkpoint.read(tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04broken"])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(AgentEnvError, match=r"x\.pt cannot be read"):
        checkpoint.read(tmp_path / "x.pt")


def test_another_format_and_a_missing_file_are_named(tmp_path: Path) -> None:
    torch.save({"format": 99}, tmp_path / "x.pt")
    with pytest.raises(AgentEnvError, match="no checkpoint of format 1"):
        checkpoint.read(tmp_path / "x.pt")
    with pytest.raises(NotFound):
        checkpoint.read(tmp_path / "y.pt")


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    checkpoint.write({"format": 1, "value": 1}, path)
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError)):
        checkpoint.write({"format": 1, "value": lambda: 0}, path)
    assert checkpoint.read(path)["value"] == 1


def test_parameters_of_another_network_are_refused() -> None:
    model, envs = parts()
    wide, _ = parts(hyperparameters={"policy_kwargs": {"net_arch": [32]}})
    with pytest.raises(AgentEnvError, match="does not fit the network"):
        checkpoint.load_parameters(wide, checkpoint.capture(model, envs, {}) if model.learn(64) else {})


def test_only_the_filled_part_of_a_replay_buffer_is_written() -> None:
    model, envs = parts("DQN", hyperparameters={"buffer_size": 100_000})
    model.learn(60)
    state = checkpoint.capture(model, envs, {})
    assert state["replay"]["arrays"]["rewards"].shape == (30, 2)
