"""Evaluations: fair, repeatable, and blind to failures of the machinery."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.train.doubles import Failing, lanes

from agentenv.errors import InfrastructureError
from agentenv.train import GymnasiumVecEnv
from agentenv.train.evaluation import Evaluation, play, random_policy


def envs(count: int = 3) -> GymnasiumVecEnv:
    return GymnasiumVecEnv(lanes()(None, count, None))


def flip_first_wrong(observations: Any) -> Any:
    return np.argmax(observations[:, :4] != observations[:, 4:], axis=1)


def test_the_best_policy_gets_the_whole_optimum() -> None:
    found = play(flip_first_wrong, envs(), 7, seed=1)
    assert len(found.returns) == len(found.lengths) == 7
    assert found.returns == found.optimal
    assert found.fraction_of_optimal == 1.0
    assert found.deviation == pytest.approx(float(np.std(found.returns)))


def test_random_actions_are_repeatable_and_far_from_it() -> None:
    space = spaces.Discrete(4)
    one = play(random_policy(space, 3, 5), envs(), 12, seed=1)
    assert one == play(random_policy(space, 3, 5), envs(), 12, seed=1)
    assert one != play(random_policy(space, 3, 6), envs(), 12, seed=1)
    assert one.fraction_of_optimal is not None
    assert one.fraction_of_optimal < 0.8


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_the_same_episodes_are_played_however_many_lanes_there_are(count: int) -> None:
    assert play(lambda observations: np.zeros(len(observations), dtype=int), envs(count), 9, seed=4) == play(
        lambda observations: np.zeros(len(observations), dtype=int), envs(3), 9, seed=4
    )


def test_short_episodes_are_not_favoured() -> None:
    alone = [play(flip_first_wrong, envs(1), 1, seed=8 + number) for number in range(6)]
    together = play(flip_first_wrong, envs(3), 6, seed=8)
    assert together.lengths == tuple(one.lengths[0] for one in alone)
    assert together.optimal == tuple(one.optimal[0] for one in alone if one.optimal is not None)


def test_more_lanes_than_episodes_do_no_harm() -> None:
    assert play(flip_first_wrong, envs(5), 2, seed=3) == play(flip_first_wrong, envs(1), 2, seed=3)


def test_a_lost_episode_is_played_again_and_counted_apart() -> None:
    failing = GymnasiumVecEnv(Failing(lanes()(None, 2, None), {(0, 0), (3, 1)}))
    found = play(flip_first_wrong, failing, 6, seed=1)
    assert found.lost == 2
    assert len(found.returns) == 6
    assert found.returns == found.optimal


def test_sandboxes_that_fail_for_ever_end_an_evaluation() -> None:
    failing = GymnasiumVecEnv(Failing(lanes()(None, 1, None), {(step, 0) for step in range(100)}))
    with pytest.raises(InfrastructureError, match="an evaluation of 2 episodes lost 11 to failing sandboxes"):
        play(flip_first_wrong, failing, 2, seed=1)


def test_where_the_optimum_is_unknown_there_is_no_fraction() -> None:
    found = Evaluation((1.0, 3.0), (2, 4), None)
    assert (found.mean_return, found.mean_length, found.mean_optimal, found.fraction_of_optimal) == (2.0, 3.0, None, None)
    assert Evaluation((1.0,), (1,), (0.0,)).fraction_of_optimal is None
