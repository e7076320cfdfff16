"""The adapter between Gymnasium's vector environments and stable-baselines3."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.train.doubles import Failing, KeyedSwitches, SavableVectorEnv, Switches, UnsavableVectorEnv, lanes

from agentenv.train import GymnasiumVecEnv


def adapter(mode: AutoresetMode = AutoresetMode.SAME_STEP, kind: Any = Switches, count: int = 3) -> GymnasiumVecEnv:
    return GymnasiumVecEnv(lanes(kind, mode=mode)(None, count, None))


def played(envs: GymnasiumVecEnv, steps: int = 80) -> list[Any]:
    """Everything that a fixed sequence of actions brings."""
    generator = np.random.default_rng(5)
    envs.seed(11)
    seen: list[Any] = [envs.reset().tolist()]
    for _ in range(steps):
        observations, rewards, dones, infos = envs.step(generator.integers(0, 4, envs.num_envs))
        assert rewards.dtype == np.float32
        plain = [{key: np.asarray(value).tolist() for key, value in info.items() if key != "optimal_return"} for info in infos]
        seen.append((observations.tolist(), rewards.tolist(), dones.tolist(), plain))
    return seen


def test_every_autoreset_mode_looks_the_same_to_a_learner() -> None:
    expected = played(adapter(AutoresetMode.SAME_STEP))
    assert sum(any(dones) for _, _, dones, _ in expected[1:]) > 5
    assert played(adapter(AutoresetMode.NEXT_STEP)) == expected
    assert played(adapter(AutoresetMode.DISABLED)) == expected


def test_a_finished_lane_brings_its_last_observation_and_already_shows_the_next_episode() -> None:
    envs = adapter(count=1)
    envs.seed(0)
    before = envs.reset()[0]
    wrong = np.flatnonzero(before[:4] != before[4:])
    for switch in wrong:
        observations, rewards, dones, infos = envs.step(np.array([switch]))
    assert dones.tolist() == [True]
    assert rewards.tolist() == [6.0]
    last = infos[0]["terminal_observation"]
    assert (last[:4] == last[4:]).all()
    assert not (observations[0][:4] == observations[0][4:]).all()
    assert infos[0]["TimeLimit.truncated"] is False
    assert infos[0]["episode"] == {"r": len(wrong) + 5.0, "l": len(wrong), "t": 0.0, "optimal": len(wrong) + 5.0}


def test_a_truncated_lane_says_so() -> None:
    envs = adapter(count=1)
    envs.seed(1)
    before = envs.reset()[0]
    right = int(np.flatnonzero(before[:4] == before[4:])[0]) if (before[:4] == before[4:]).any() else 0
    infos: list[dict[str, Any]] = [{}]
    for _ in range(Switches.limit):
        _, _, dones, infos = envs.step(np.array([right]))
    assert dones.tolist() == [True]
    assert infos[0]["TimeLimit.truncated"] is True
    assert infos[0]["episode"]["l"] == Switches.limit


def test_dictionary_observations_pass_through() -> None:
    envs = adapter(kind=KeyedSwitches, count=2)
    envs.seed(0)
    first = envs.reset()
    assert {key: value.shape for key, value in first.items()} == {"now": (2, 4), "target": (2, 4)}
    for _ in range(Switches.limit):
        _, _, dones, infos = envs.step(np.array([0, 0]))
    assert dones.all()
    assert set(infos[0]["terminal_observation"]) == {"now", "target"}


def test_what_was_returned_is_never_written_over() -> None:
    raw = SavableVectorEnv([Switches, Switches], copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    envs = GymnasiumVecEnv(raw)
    envs.seed(0)
    first = envs.reset()
    copy = first.copy()
    envs.step(np.array([0, 1]))
    assert (first == copy).all()


def test_a_failed_lane_has_no_reward_no_episode_and_its_last_known_observation() -> None:
    told: list[tuple[int, object]] = []
    raw = Failing(lanes()(None, 3, None), {(2, 1)})
    envs = GymnasiumVecEnv(raw, on_infra_error=lambda lane, error: told.append((lane, error)))
    envs.seed(4)
    envs.reset()
    for _ in range(3):
        before = envs._previous.copy()  # what the learner was given last
        _, rewards, dones, infos = envs.step(np.array([0, 0, 0]))
    assert np.isnan(rewards).tolist() == [False, True, False]
    assert dones[1]
    assert "episode" not in infos[1]
    assert infos[1]["infra_error"] == "sandbox x died: killed."
    assert (infos[1]["terminal_observation"] == before[1]).all()
    assert envs.infra_errors == 1
    assert told == [(1, "sandbox x died: killed.")]
    assert envs._lengths.tolist() == [3, 0, 3]


def test_saved_lanes_go_on_exactly() -> None:
    one, other = adapter(), adapter()
    generator = np.random.default_rng(0)
    one.seed(2)
    observations = one.reset()
    for _ in range(25):
        observations, *_ = one.step(generator.integers(0, 4, 3))
    saved = one.save_lanes()
    assert other.load_lanes(saved, observations)
    for _ in range(40):
        actions = generator.integers(0, 4, 3)
        mine, theirs = one.step(actions), other.step(actions)
        assert [part.tolist() for part in mine[:3]] == [part.tolist() for part in theirs[:3]]
        assert [info.get("episode") for info in mine[3]] == [info.get("episode") for info in theirs[3]]
    assert one.episodes == other.episodes


def test_lanes_that_cannot_be_saved_say_so() -> None:
    envs = GymnasiumVecEnv(lanes(vector=UnsavableVectorEnv)(None, 2, None))
    envs.seed(0)
    observations = envs.reset()
    saved = envs.save_lanes()
    assert saved["lanes"] is None
    assert not envs.load_lanes(saved, observations)


def test_single_lanes_can_be_asked_and_told() -> None:
    envs = adapter()
    envs.seed(0)
    envs.reset()
    assert envs.get_attr("render_mode") == [None, None, None]
    assert envs.get_attr("limit", [1]) == [Switches.limit]
    assert envs.env_method("chosen", 3, indices=[0, 2]) == [3, 3]
    envs.set_attr("limit", 5, [2])
    assert envs.get_attr("limit") == [12, 12, 5]
    assert envs.env_is_wrapped(object, [0]) == [False]


def test_an_environment_that_has_no_lanes_to_ask_is_an_attribute_error() -> None:
    envs = adapter()
    with pytest.raises(AttributeError):
        envs.get_attr("no_such_thing")
