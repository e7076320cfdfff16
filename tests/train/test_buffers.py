"""What a broken transition does to the buffers: nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agentenv.errors import InfrastructureError
from agentenv.train.buffers import SandboxDictReplayBuffer, SandboxNStepReplayBuffer, SandboxReplayBuffer, SandboxRolloutBuffer

OBSERVATIONS = spaces.Box(-1.0, 1.0, (2,), np.float32)
ACTIONS = spaces.Discrete(3)
GAMMA, LAMBDA = 0.9, 0.8


def rollout(rewards: Any, starts: Any, values: Any) -> SandboxRolloutBuffer:
    """A full buffer of shape (steps, lanes) = rewards' shape; the observation of each entry is its own number."""
    rewards = np.asarray(rewards, dtype=np.float32)
    buffer = SandboxRolloutBuffer(*rewards.shape[:1], OBSERVATIONS, ACTIONS, gamma=GAMMA, gae_lambda=LAMBDA, n_envs=rewards.shape[1])
    for step, row in enumerate(rewards):
        number = np.arange(len(row)) + step * len(row)
        buffer.add(
            np.stack([number, number], axis=1),
            np.zeros((len(row), 1)),
            row,
            np.asarray(starts[step]),
            torch.tensor(values[step]),
            torch.zeros(len(row)),
        )
    return buffer


def test_the_steps_before_a_failure_bootstrap_from_the_state_in_which_it_struck() -> None:
    nan = float("nan")
    buffer = rollout([[1.0], [2.0], [nan], [3.0]], [[True], [False], [False], [True]], [[0.1], [0.2], [0.3], [0.4]])
    buffer.compute_returns_and_advantage(torch.tensor([0.5]), np.array([False]))
    second = 2.0 + GAMMA * 0.3 - 0.2
    first = (1.0 + GAMMA * 0.2 - 0.1) + GAMMA * LAMBDA * second
    last = 3.0 + GAMMA * 0.5 - 0.4
    assert buffer.advantages.flatten().tolist() == pytest.approx([first, second, 0.0, last])
    assert buffer.returns.flatten().tolist()[2] == pytest.approx(0.3)


def test_a_broken_transition_is_in_no_minibatch() -> None:
    nan = float("nan")
    buffer = rollout([[1.0, nan], [1.0, 1.0], [nan, 1.0]], [[True, True], [False, True], [False, False]], [[0.0, 0.0]] * 3)
    buffer.compute_returns_and_advantage(torch.tensor([0.0, 0.0]), np.array([True, False]))
    seen = [int(row[0]) for batch in buffer.get(2) for row in batch.observations]
    assert sorted(set(seen)) == [0, 2, 3, 5]
    everything = next(iter(buffer.get(None)))
    assert sorted(int(row[0]) for row in everything.observations) == [0, 2, 3, 5]
    assert torch.isfinite(everything.advantages).all()


def test_a_sound_rollout_is_untouched() -> None:
    buffer = rollout([[1.0, 2.0]], [[True, True]], [[0.0, 0.0]])
    buffer.compute_returns_and_advantage(torch.tensor([0.0, 0.0]), np.array([True, True]))
    assert sorted(next(iter(buffer.get(None))).returns.tolist()) == [1.0, 2.0]


def test_a_rollout_of_nothing_but_failures_is_an_infrastructure_error() -> None:
    buffer = rollout([[float("nan")]], [[True]], [[0.0]])
    with pytest.raises(InfrastructureError, match="every sandbox failed"):
        buffer.compute_returns_and_advantage(torch.tensor([0.0]), np.array([True]))


def fill(buffer: Any, rewards: list[float], dones: list[bool]) -> None:
    for index, (reward, done) in enumerate(zip(rewards, dones, strict=True)):
        observation = np.full((1, 2), float(index), dtype=np.float32)
        buffer.add(observation, observation + 1, np.zeros((1, 1)), np.array([reward]), np.array([done]), [{}])


def test_a_replay_sample_has_no_broken_transition() -> None:
    buffer = SandboxReplayBuffer(8, OBSERVATIONS, ACTIONS)
    fill(buffer, [0.0, float("nan"), 2.0, 3.0], [False, True, False, True])
    seen = {int(row[0]) for _ in range(30) for row in buffer.sample(4).observations}
    assert seen == {0, 2, 3}
    assert all(torch.isfinite(buffer.sample(4).rewards).all() for _ in range(30))


def test_a_dictionary_replay_sample_has_no_broken_transition() -> None:
    buffer = SandboxDictReplayBuffer(8, spaces.Dict({"a": OBSERVATIONS}), ACTIONS)
    for index, reward in enumerate([0.0, float("nan")]):
        observation = {"a": np.full((1, 2), float(index), dtype=np.float32)}
        buffer.add(observation, observation, np.zeros((1, 1)), np.array([reward]), np.array([True]), [{}])
    assert {int(row[0]) for _ in range(20) for row in buffer.sample(4).observations["a"]} == {0}


def test_returns_over_several_steps_leave_out_windows_that_touch_a_failure() -> None:
    buffer = SandboxNStepReplayBuffer(16, OBSERVATIONS, ACTIONS, n_steps=2, gamma=0.5)
    fill(buffer, [1.0, 1.0, float("nan"), 1.0, 1.0, 1.0], [False, False, True, False, False, False])
    starts = {int(row[0]) for _ in range(50) for row in buffer.sample(8).observations}
    assert not starts & {1, 2}
    assert {0, 3, 4} <= starts


def test_a_replay_buffer_of_nothing_but_failures_is_an_infrastructure_error() -> None:
    buffer = SandboxReplayBuffer(4, OBSERVATIONS, ACTIONS)
    fill(buffer, [float("nan")], [True])
    with pytest.raises(InfrastructureError, match="nothing but transitions"):
        buffer.sample(2)
