"""`basic_rl_env`: real files, the rewards as promised, the optimum in closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.envs.guest.basic import FILES, MAX_STEPS, BasicRLEnv, chosen


@pytest.fixture
def env(tmp_path: Path) -> BasicRLEnv:
    return BasicRLEnv(str(tmp_path / "work"))


def on_disk(env: BasicRLEnv) -> list[float]:
    present = {path.name for path in env.directory.iterdir()}
    return [float(f"file-{number:02d}" in present) for number in range(FILES)]


def wrong(observation: Any) -> list[int]:
    return [number for number in range(FILES) if observation[number] != observation[FILES + number]]


def test_the_observation_is_what_is_on_disk(env: BasicRLEnv) -> None:
    observation, _ = env.reset(seed=1)
    assert list(observation[:FILES]) == on_disk(env)
    observation, *_ = env.step(4)
    assert list(observation[:FILES]) == on_disk(env)


def test_an_action_creates_or_removes_that_file(env: BasicRLEnv) -> None:
    env.reset(seed=1)
    before = on_disk(env)
    env.step(7)
    after = on_disk(env)
    assert [number for number in range(FILES) if before[number] != after[number]] == [7]
    env.step(7)
    assert on_disk(env) == before


@pytest.mark.parametrize("seed", range(20))
def test_the_best_policy_earns_the_optimal_return(env: BasicRLEnv, seed: int) -> None:
    observation, info = env.reset(seed=seed)
    distance = len(wrong(observation))
    assert 1 <= distance <= FILES
    assert info["optimal_return"] == distance + 5
    total, terminated = 0.0, False
    while not terminated:
        observation, reward, terminated, truncated, info = env.step(wrong(observation)[0])
        total += reward
        assert not truncated
    assert total == info["optimal_return"]
    assert wrong(observation) == []


def test_a_step_away_costs_one_and_the_last_step_of_64_truncates(env: BasicRLEnv) -> None:
    observation, _ = env.reset(seed=3)
    right = next(number for number in range(FILES) if number not in wrong(observation))
    rewards, cut = [], []
    for _ in range(MAX_STEPS):
        _, reward, terminated, truncated, _ = env.step(right)
        rewards.append(reward)
        cut.append(truncated)
        assert not terminated
    assert rewards == [-1.0, 1.0] * (MAX_STEPS // 2)
    assert cut == [False] * (MAX_STEPS - 1) + [True]


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    one, other = BasicRLEnv(str(tmp_path / "one")), BasicRLEnv(str(tmp_path / "other"))
    assert one.reset(seed=5) == other.reset(seed=5)
    assert one.reset() == other.reset()
    assert one.reset(seed=6) != other.reset(seed=7)


def test_somebody_elses_change_is_seen(env: BasicRLEnv) -> None:
    observation, _ = env.reset(seed=1)
    for path in env.directory.iterdir():
        path.unlink()
    (env.directory / "another").touch()
    observation, *_ = env.step(0)
    assert list(observation[:FILES]) == on_disk(env)


def test_a_wanted_target_can_be_given(env: BasicRLEnv) -> None:
    observation, _ = env.reset(seed=1, options={"target": 0b101})
    assert [number for number in range(FILES) if observation[FILES + number]] == [0, 2]
    initial = sum(int(bit) << number for number, bit in enumerate(observation[:FILES]))
    observation, info = env.reset(seed=1, options={"target": initial})
    assert info["optimal_return"] == 6
    with pytest.raises(ValueError, match="must be from 0"):
        env.reset(options={"target": 1 << FILES})


def test_an_episode_goes_on_from_its_bytes(env: BasicRLEnv, tmp_path: Path) -> None:
    env.reset(seed=2)
    env.step(1)
    state = env.save()
    other = BasicRLEnv(str(tmp_path / "other"))
    other.load(state)
    assert on_disk(other) == on_disk(env)
    for action in (3, 3, 9, 15):
        assert env.step(action) == other.step(action)
    assert env.reset() == other.reset()


def test_it_shows_itself(tmp_path: Path) -> None:
    env = BasicRLEnv(str(tmp_path), render_mode="ansi")
    observation, _ = env.reset(seed=1)
    first, second = str(env.render()).splitlines()
    assert [mark == "#" for mark in first.split()[1] + second.split()[1]] == [bool(bit) for bit in observation]


@given(st.lists(st.floats(allow_nan=False), min_size=FILES, max_size=FILES))
def test_scores_choose_as_numpys_argmax(scores: list[float]) -> None:
    assert chosen(scores) == np.argmax(scores)


@pytest.mark.parametrize("action", [-1, 16, [1.0] * 15, [float("nan")] * 16, 1.5])
def test_other_actions_are_refused(action: Any) -> None:
    with pytest.raises(ValueError, match="action"):
        chosen(action)
