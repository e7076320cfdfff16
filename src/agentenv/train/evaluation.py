"""How good is a policy? Plays whole episodes in environments that training never touches, and says what the best possible was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from agentenv.errors import InfrastructureError
from agentenv.train.vec_env import GymnasiumVecEnv

Policy = Callable[[Any], NDArray[Any]]
"""From observations of shape (lanes, …) to one action for each lane."""

MOST_LOST = 5
"""So many lost episodes for each wanted one, and the evaluation gives up."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes of one evaluation: their returns, lengths in steps and best possible returns (None where the environment does not tell).

    `lost` episodes were broken off by a sandbox's failure; they are in none of the figures.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    optimal: tuple[float, ...] | None
    lost: int = 0

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def deviation(self) -> float:
        """Standard deviation of the returns over the episodes."""
        return float(np.std(self.returns))

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))

    @property
    def mean_optimal(self) -> float | None:
        return None if self.optimal is None else float(np.mean(self.optimal))

    @property
    def fraction_of_optimal(self) -> float | None:
        """Mean return over mean best possible return; None where that is unknown or not above 0."""
        best = self.mean_optimal
        return self.mean_return / best if best is not None and best > 0 else None


def play(policy: Policy, envs: GymnasiumVecEnv, episodes: int, seed: int) -> Evaluation:
    """Plays the episodes that begin with the seeds `seed` to `seed + episodes - 1`, each to its end, in whichever lane is free.

    So the same seed gives the same episodes to every policy, however many lanes there are, and short ones are not favoured. An episode
    that a sandbox's failure broke off is played again. Raises `InfrastructureError` where that happens again and again.
    """
    waiting = list(reversed(range(episodes)))
    envs.seed(seed)
    observations = envs.reset()
    playing = {lane: waiting.pop() for lane in range(min(envs.num_envs, episodes))}
    finished: dict[int, dict[str, Any]] = {}
    lost = 0
    while len(finished) < episodes:
        observations, _, dones, infos = envs.step(policy(observations))
        ended = [lane for lane in np.flatnonzero(dones).tolist() if lane in playing]
        for lane in ended:
            number = playing.pop(lane)
            if "infra_error" in infos[lane]:
                lost += 1
                waiting.append(number)
            else:
                finished[number] = infos[lane]["episode"]
            if waiting:
                playing[lane] = waiting.pop()
        if lost > MOST_LOST * episodes:
            raise InfrastructureError(
                f"an evaluation of {episodes} episodes lost {lost} to failing sandboxes.",
                remedy="Run `agentenv doctor`; see the run's events.jsonl.",
            )
        if begin := {lane: seed + playing[lane] for lane in ended if lane in playing}:
            observations = envs.restart(begin)
    return _evaluation([finished[number] for number in range(episodes)], lost)


def _evaluation(finished: list[dict[str, Any]], lost: int) -> Evaluation:
    known = all("optimal" in episode for episode in finished)
    return Evaluation(
        tuple(float(episode["r"]) for episode in finished),
        tuple(int(episode["l"]) for episode in finished),
        tuple(float(episode["optimal"]) for episode in finished) if known else None,
        lost,
    )


def random_policy(action_space: Space[Any], lanes: int, seed: int) -> Policy:
    """Draws every action uniformly, with a generator of its own: the baseline that learning has to beat."""
    space = copy.deepcopy(action_space)
    space.seed(seed)
    return lambda _observations: np.array([space.sample() for _ in range(lanes)])
