"""Where learners keep transitions: stable-baselines3's buffers, which here leave out those that a sandbox's failure broke.

A broken transition arrives with a reward of NaN (`agentenv.train.vec_env`). It is neither good nor bad, it is unknown, so:

* on-policy (PPO, A2C): its advantage is set to zero, which also ends the chain of generalised advantage estimation there and lets the
  steps before it bootstrap from the value of the state in which the failure struck; and it is in no minibatch, so it has no weight in
  any loss.
* off-policy (DQN, SAC): it is dropped from every sample, and so is every n-step return whose window touches it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer, NStepReplayBuffer, ReplayBuffer, RolloutBuffer

from agentenv.errors import InfrastructureError

MOST_DRAWS = 100


class SandboxRolloutBuffer(RolloutBuffer):
    """For array observations.

    `broken`, shape (steps, lanes), marks the entries without a reward; `sound` are the flat indices of the others.
    """

    broken: NDArray[np.bool_]
    sound: NDArray[np.int64]

    def reset(self) -> None:
        self.broken = np.zeros((self.buffer_size, self.n_envs), dtype=np.bool_)
        super().reset()

    def add(self, obs: Any, action: Any, reward: Any, episode_start: Any, value: Any, log_prob: Any) -> None:
        missing = np.isnan(reward)
        self.broken[self.pos] = missing
        super().add(obs, action, np.where(missing, 0.0, reward), episode_start, value, log_prob)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[np.bool_]) -> None:
        """The lane is done after a broken step, so a reward equal to the state's own value makes its advantage exactly zero."""
        if self.broken.all():
            raise InfrastructureError(
                f"every sandbox failed in every one of the last {self.buffer_size} steps, so there is nothing to learn from.",
                remedy="See the run's events.jsonl for what happened to them.",
            )
        self.rewards[self.broken] = self.values[self.broken]
        super().compute_returns_and_advantage(last_values, dones)
        self.sound = np.flatnonzero(~self.broken.swapaxes(0, 1).reshape(-1))

    def _get_samples(self, batch_inds: NDArray[Any], env: Any = None) -> Any:
        """Those of `batch_inds` that are sound; where none of a small minibatch is, as many others."""
        kept = batch_inds[np.isin(batch_inds, self.sound)] if len(self.sound) < self.broken.size else batch_inds
        if len(kept) == 0:
            kept = np.random.choice(self.sound, size=len(batch_inds))
        return super()._get_samples(kept, env)


class SandboxDictRolloutBuffer(SandboxRolloutBuffer, DictRolloutBuffer):
    """For dictionary observations."""


class SandboxReplayBuffer(ReplayBuffer):
    """For array observations. A sample may be smaller than asked for by the broken transitions that were drawn."""

    def sample(self, batch_size: int, env: Any = None) -> Any:
        for _ in range(MOST_DRAWS):
            samples = super().sample(batch_size, env)
            sound = ~torch.isnan(samples.rewards.flatten())
            if bool(sound.all()):
                return samples
            if bool(sound.any()):
                return _rows(samples, sound)
        raise InfrastructureError(
            "the replay buffer holds nothing but transitions that a sandbox's failure broke.",
            remedy="See the run's events.jsonl for what happened to the sandboxes.",
        )


class SandboxDictReplayBuffer(SandboxReplayBuffer, DictReplayBuffer):
    """For dictionary observations."""


class SandboxNStepReplayBuffer(SandboxReplayBuffer, NStepReplayBuffer):
    """For array observations and n-step returns: NaN among the n rewards makes the whole return NaN, so it is left out."""


def _rows(samples: Any, which: torch.Tensor) -> Any:
    """The same named tuple, each of its tensors (or dictionary of tensors) reduced to the rows in `which`."""
    reduced: list[Any] = []
    for value in samples:
        if isinstance(value, dict):
            reduced.append({key: tensor[which] for key, tensor in value.items()})
        else:
            reduced.append(value[which] if isinstance(value, torch.Tensor) else value)
    return type(samples)(*reduced)
