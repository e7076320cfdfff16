"""`AgentEnvironment`: the classic form, from a configuration."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.envs import samples
from tests.envs.conftest import BASIC
from tests.envs.local_sandbox import LocalSandbox

from agentenv.envs import AgentEnvironment
from agentenv.errors import AgentEnvError, InfrastructureError

SAMPLES = samples.__file__


CONFIG = """\
environment:
  name: "basic_rl_env"
  resources:
    memory: "512MB"
    cpu: 1
    storage: "1GB"
training:
  algorithm: "PPO"
  max_steps: 1000000
  batch_size: 1024
"""
AGENT = """\
from agentenv import AgentEnvironment

class BasicRLAgent:
    def __init__(self, env_config):
        self.env = AgentEnvironment(env_config)
        self.model = self._build_model()

    def _build_model(self):
        import numpy as np

        class Model:
            def predict(self, state):
                return np.abs(state[:, :16] - state[:, 16:])

        return Model()

    def train(self, episodes=1000):
        for episode in range(episodes):
            state = self.env.reset()
            total_reward = 0
            while True:
                action = self.model.predict(state)
                next_state, reward, done, _ = self.env.step(action)
                total_reward += reward
                state = next_state
                if done:
                    break
            if episode % 100 == 0:
                print(f"Episode {episode}, Total Reward: {total_reward}")

if __name__ == "__main__":
    agent = BasicRLAgent("config.yaml")
    agent.train()
"""
"""An agent in the form in which they are usually written, with a network of numpy; `gym` is not there and not needed."""


def in_a_folder(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "agent.py").write_text(AGENT)
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=100)


def test_an_agent_as_it_was_always_written(tmp_path: Path, usable_backend: str) -> None:
    done = in_a_folder(tmp_path, "-c", "import agent; agent.BasicRLAgent('config.yaml').train(episodes=3)")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"Episode 0, Total Reward: \d+\.0\n", done.stdout)


def test_the_old_gym_is_python_s_own_matter(tmp_path: Path) -> None:
    if importlib.util.find_spec("gym") is not None:
        pytest.skip("gym is installed here")
    done = in_a_folder(tmp_path, "-c", "import gym, agent")
    assert done.returncode == 1
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'gym'\n")


def environment(name: str, options: dict[str, Any], factory: Callable[[], LocalSandbox], **arguments: Any) -> AgentEnvironment:
    return AgentEnvironment({"environment": {"name": name, "options": options}}, factory=factory, **arguments)


def test_one_sandbox_gives_a_batch_of_one(stand_in: Callable[[], LocalSandbox]) -> None:
    with environment("basic_rl_env", BASIC, stand_in) as env:
        state = env.reset(seed=1)
        assert (state.shape, state.dtype) == ((1, 32), np.float32)
        scores = np.zeros((1, 16))
        scores[0, 5] = 1
        next_state, reward, done, info = env.step(scores)
        assert np.flatnonzero(next_state != state).tolist() == [5]
        assert type(reward) is float
        assert done is False
        assert info == {"optimal_return": 12.0, "TimeLimit.truncated": False}
        for action in (5, [5], np.int64(5), np.array([5]), np.array([5.0]), scores[0]):
            before, state = next_state, None
            next_state, *_ = env.step(action)
            assert np.flatnonzero(next_state != before).tolist() == [5]


def test_truncation_is_told_apart(stand_in: Callable[[], LocalSandbox]) -> None:
    with environment("basic_rl_env", BASIC, stand_in) as env:
        state = env.reset(seed=1)
        right = int(np.flatnonzero(state[0, :16] == state[0, 16:])[0])
        ends = [env.step(right)[2:] for _ in range(64)]
        assert [done for done, _ in ends] == [False] * 63 + [True]
        assert ends[-1][1]["TimeLimit.truncated"] is np.True_
        assert env.reset().shape == (1, 32)


def test_several_sandboxes_go_on_by_themselves(stand_in: Callable[[], LocalSandbox]) -> None:
    with environment(f"{SAMPLES}:Counter", {"length": 2}, stand_in, num_envs=3) as env:
        assert env.reset(seed=1).shape == (3, 2)
        env.step([0, 1, 2])
        state, reward, done, info = env.step(np.eye(3))
        assert reward.tolist() == [0.0, 1.0, 2.0]
        assert done.tolist() == [True, True, True]
        assert state[:, 0].tolist() == [0.0, 0.0, 0.0]
        assert [last[0] for last in info["final_obs"]] == [2.0, 2.0, 2.0]
        assert env.step([0, 0, 0])[0][:, 0].tolist() == [1.0, 1.0, 1.0]


def test_continuous_actions(stand_in: Callable[[], LocalSandbox]) -> None:
    with environment("gymnasium:Pendulum-v1", {}, stand_in) as env:
        env.reset(seed=1)
        one = env.step(np.array([[0.5]], np.float32))
        env.reset(seed=1)
        other = env.step(np.array([0.5], np.float32))
        assert (one[0] == other[0]).all()
        assert one[1] == other[1]


@pytest.mark.parametrize("action", [np.zeros((1, 15)), np.array([0.5]), "up", [1, 2]])
def test_actions_that_are_none(stand_in: Callable[[], LocalSandbox], action: Any) -> None:
    with environment("basic_rl_env", BASIC, stand_in) as env:
        env.reset()
        with pytest.raises(AgentEnvError, match=r"neither one of 16 choices nor a row of 16 scores|do not fit"):
            env.step(action)


def test_a_dead_sandbox_raises_and_a_reset_starts_another(stand_in: Callable[[], LocalSandbox]) -> None:
    with environment("basic_rl_env", BASIC, stand_in) as env:
        env.reset()
        env.envs.sandboxes[0].kill()
        with pytest.raises(InfrastructureError):
            env.step(1)
        assert env.reset().shape == (1, 32)
        assert abs(env.step(1)[1]) in (1.0, 6.0)
