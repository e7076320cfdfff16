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
    """Plays `episodes` episodes, spread evenly over the lanes of `envs`, which start from `seed`.

    Each lane plays a number fixed beforehand, so short episodes are not favoured; the same seed gives the same episodes to every policy.
    Raises `InfrastructureError` where sandboxes fail again and again.
    """
    quota = np.array([episodes // envs.num_envs + (lane < episodes % envs.num_envs) for lane in range(envs.num_envs)])
    played: list[list[dict[str, Any]]] = [[] for _ in range(envs.num_envs)]
    lost = 0
    envs.seed(seed)
    observations = envs.reset()
    while any(len(done) < wanted for done, wanted in zip(played, quota, strict=True)):
        observations, _, dones, infos = envs.step(policy(observations))
        for lane in np.flatnonzero(dones):
            if "infra_error" in infos[lane]:
                lost += 1
            elif len(played[lane]) < quota[lane]:
                played[lane].append(infos[lane]["episode"])
        if lost > MOST_LOST * episodes:
            raise InfrastructureError(
                f"an evaluation of {episodes} episodes lost {lost} to failing sandboxes.",
                remedy="Run `agentenv doctor`; see the run's events.jsonl.",
            )
    finished = [episode for lane in played for episode in lane]
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
