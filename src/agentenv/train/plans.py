"""How `batch_size` becomes what an algorithm calls it, and a sentence that tells the reader what was chosen and why.

`batch_size` is the number of samples in one optimiser step, for every algorithm. What else must follow from it (how long to collect between
updates, how many updates then) is derived here unless `hyperparameters` says it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentenv.config import TrainingConfig
from agentenv.errors import ConfigError

SHORTEST_ROLLOUT = 128
"""Steps of each environment between two PPO updates, unless configured: enough for advantages to look ahead about 1 / (1 - 0.99) steps."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Keyword arguments of the learner; how many environment steps (over all lanes) lie between two updates; and the explanation."""

    arguments: Mapping[str, Any]
    steps_per_update: int
    explanation: str


def ppo_plan(training: TrainingConfig, lanes: int) -> BatchPlan:
    """Whole minibatches, whole steps of each environment, and no shorter than `SHORTEST_ROLLOUT`: the smallest such rollout."""
    batch = training.batch_size or 64
    given = training.hyperparameters.get("n_steps")
    if given is None:
        unit = math.lcm(batch, lanes)
        n_steps = unit * math.ceil(SHORTEST_ROLLOUT * lanes / unit) // lanes
        why = f"the shortest that gives whole minibatches and at least {SHORTEST_ROLLOUT} steps of each environment"
    else:
        n_steps = _whole("n_steps", given)
        if (n_steps * lanes) % batch:
            unit = batch // math.gcd(batch, lanes)
            raise ConfigError(
                f"{n_steps} steps of each of {_environments(lanes)} are {n_steps * lanes} samples, no multiple of batch_size {batch}; "
                f"write a multiple of {unit}, or leave it out to have it derived",
                key="training.hyperparameters.n_steps",
            )
        why = "n_steps as configured"
    samples, epochs = n_steps * lanes, training.hyperparameters.get("n_epochs", 10)
    minibatches = f"{samples // batch} minibatch{'es' if samples > batch else ''} of {batch}"
    return BatchPlan(
        {"n_steps": n_steps, "batch_size": batch},
        samples,
        f"each update uses {n_steps} steps of each of {_environments(lanes)} = {samples} samples ({why}), "
        f"in {minibatches}, {epochs} times over.",
    )


def a2c_plan(training: TrainingConfig, lanes: int) -> BatchPlan:
    """A2C makes one optimiser step from one rollout, so the rollout is the batch."""
    given = training.hyperparameters.get("n_steps")
    if training.batch_size is None:
        n_steps = 5 if given is None else _whole("n_steps", given)
    else:
        n_steps, rest = divmod(training.batch_size, lanes)
        if rest or (given is not None and given != n_steps):
            raise ConfigError(
                f"A2C's batch is one whole rollout, n_steps x environments, and {training.batch_size} is not "
                f"{n_steps if given is None else given} x {lanes}; write {max(n_steps, 1) * lanes}"
                + (f" or {(n_steps + 1) * lanes}" if rest else ", or leave n_steps out"),
                key="training.batch_size",
            )
    return BatchPlan(
        {"n_steps": n_steps},
        n_steps * lanes,
        f"each update uses {n_steps} steps of each of {_environments(lanes)} = {n_steps * lanes} samples, all in one optimiser step.",
    )


def replay_plan(training: TrainingConfig, lanes: int, *, default_batch: int, transitions_per_update: int) -> BatchPlan:
    """Off-policy: `batch_size` samples of the replay buffer a step, and one step for every `transitions_per_update` new transitions."""
    batch = training.batch_size or default_batch
    given = training.hyperparameters
    if "train_freq" in given or "gradient_steps" in given:
        frequency, updates, why = given.get("train_freq", 1), given.get("gradient_steps", 1), "as configured"
        every = frequency[0] if isinstance(frequency, (list, tuple)) else frequency
    else:
        every = max(transitions_per_update // lanes, 1)
        updates = max(round(every * lanes / transitions_per_update), 1)
        frequency, why = every, f"one optimiser step for every {transitions_per_update} of them"
    steps = (
        "an optimiser step" if updates == 1 else "as many optimiser steps as transitions" if updates == -1 else f"{updates} optimiser steps"
    )
    return BatchPlan(
        {"batch_size": batch, "train_freq": tuple(frequency) if isinstance(frequency, list) else frequency, "gradient_steps": updates},
        every * lanes,
        f"after each {every * lanes} transitions of {_environments(lanes)}, {steps} of {batch} samples from the replay buffer ({why}).",
    )


def dqn_plan(training: TrainingConfig, lanes: int) -> BatchPlan:
    """The ratio of the paper (Mnih et al., Nature 2015): one update every four transitions, however many environments there are."""
    return replay_plan(training, lanes, default_batch=32, transitions_per_update=4)


def sac_plan(training: TrainingConfig, lanes: int) -> BatchPlan:
    """The ratio of the paper (Haarnoja et al., arXiv:1812.05905): one update for each transition, however many environments there are."""
    return replay_plan(training, lanes, default_batch=256, transitions_per_update=1)


def _environments(lanes: int) -> str:
    return "1 environment" if lanes == 1 else f"{lanes} environments"


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{value!r} is no whole number above 0; write one such as 128", key=f"training.hyperparameters.{name}")
    return value
