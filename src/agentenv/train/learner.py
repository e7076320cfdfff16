"""Builds the learner that a configuration describes: the stable-baselines3 object, its network, its buffers, its learning rate.

Everything random is seeded here, so two learners built from the same configuration start with the same parameters.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import Space, spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import is_image_space

from agentenv.config import TrainingConfig
from agentenv.errors import CapabilityError, ConfigError
from agentenv.naming import near
from agentenv.train.accumulation import accumulate
from agentenv.train.buffers import (
    SandboxDictReplayBuffer,
    SandboxDictRolloutBuffer,
    SandboxNStepReplayBuffer,
    SandboxReplayBuffer,
    SandboxRolloutBuffer,
)
from agentenv.train.plans import BatchPlan
from agentenv.train.registry import Algorithm, require_fit
from agentenv.train.schedules import LearningRate
from agentenv.train.vec_env import GymnasiumVecEnv

ACTIVATIONS: Mapping[str, type[torch.nn.Module]] = {
    "relu": torch.nn.ReLU,
    "tanh": torch.nn.Tanh,
    "elu": torch.nn.ELU,
    "gelu": torch.nn.GELU,
    "silu": torch.nn.SiLU,
    "leaky_relu": torch.nn.LeakyReLU,
}
ELSEWHERE: Mapping[str, str] = {
    "learning_rate": "training.learning_rate",
    "batch_size": "training.batch_size",
    "seed": "training.seed",
    "env": "environment",
}
"""Arguments of a learner that the configuration says in a place of its own."""

KEPT = {"self", "tensorboard_log", "verbose", "monitor_wrapper", "_init_setup_model", "action_noise"} | {
    f"{kind}_buffer_{what}" for kind in ("rollout", "replay") for what in ("class", "kwargs")
}
"""Arguments that the pipeline itself gives, or that no configuration file can express."""


@dataclass(frozen=True, slots=True)
class Built:
    """A learner, and how its batches were planned."""

    algorithm: Algorithm
    model: BaseAlgorithm
    plan: BatchPlan
    learning_rate: LearningRate | None

    def whole_steps(self, training: TrainingConfig) -> int:
        """`max_steps`, rounded up to whole updates."""
        return -(-training.max_steps // self.plan.steps_per_update) * self.plan.steps_per_update

    def explain(self, training: TrainingConfig) -> list[str]:
        """What was derived from the configuration, a sentence each."""
        rate = self.learning_rate.describe() if self.learning_rate is not None else "the algorithm's default"
        sentences = [f"{self.algorithm.name}: {self.plan.explanation}", f"Learning rate: {rate}."]
        if training.gradient_accumulation > 1:
            sentences.append(f"Gradient accumulation: {self.algorithm.note} ({training.gradient_accumulation}), with the same result.")
        if (whole := self.whole_steps(training)) != training.max_steps:
            sentences.append(f"Whole updates make {training.max_steps:,} steps {whole:,}.")
        return sentences


def build(chosen: Algorithm, training: TrainingConfig, envs: GymnasiumVecEnv, seed: int) -> Built:
    """The learner for `envs`, seeded.

    Raises `CapabilityError` where the algorithm does not fit the spaces or cannot accumulate gradients, `ConfigError` for a
    hyperparameter that it does not have or refuses.
    """
    require_fit(chosen, envs.action_space)
    _require_observations(envs.observation_space)
    arguments = _hyperparameters(chosen, training)
    plan = chosen.plan(training, envs.num_envs)
    rate = None if training.learning_rate is None else LearningRate(training.learning_rate, training.max_steps)
    arguments |= plan.arguments
    arguments |= _buffers(chosen.learner, envs.observation_space, arguments)
    arguments.setdefault("policy", _policy(envs.observation_space))
    arguments.setdefault("device", "auto" if arguments["policy"] == "CnnPolicy" else "cpu")
    if rate is not None:
        arguments["learning_rate"] = rate
    try:
        model = chosen.learner(env=envs, seed=seed, **arguments)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{chosen.name} refuses these values: {error}", key="training.hyperparameters") from error
    _accumulate(chosen, training, model, plan)
    return Built(chosen, model, plan, rate)


def use_threads() -> int:
    """Leaves most cores to the sandboxes: small networks gain nothing from more threads. Returns how many PyTorch uses from now on."""
    threads = max(1, min(4, len(os.sched_getaffinity(0)) // 2))
    torch.set_num_threads(threads)
    return threads


def _accumulate(chosen: Algorithm, training: TrainingConfig, model: BaseAlgorithm, plan: BatchPlan) -> None:
    parts = training.gradient_accumulation
    if parts == 1:
        return
    key = "training.gradient_accumulation"
    if not chosen.forwards:
        raise ConfigError(f"{chosen.name} does not say how its batches can be computed in parts; write 1", key=key)
    batch = plan.arguments.get("batch_size", plan.steps_per_update)
    if parts > batch:
        raise ConfigError(f"{parts} parts of a batch of {batch} samples would be empty; write {batch} or less", key=key)
    if getattr(model.policy, "share_features_extractor", False) and "critic.forward" in chosen.forwards:
        raise ConfigError(
            f"{chosen.name}'s actor cannot be computed in parts while it shares the critics' feature extractor, which changes in between; "
            "write 1, or leave share_features_extractor out",
            key=key,
        )
    accumulate(model, chosen.forwards, parts)


def _hyperparameters(chosen: Algorithm, training: TrainingConfig) -> dict[str, Any]:
    parameters = inspect.signature(chosen.learner.__init__).parameters
    allowed = sorted(set(parameters) - KEPT - set(ELSEWHERE))
    for name, value in training.hyperparameters.items():
        key = f"training.hyperparameters.{name}"
        if name in ELSEWHERE:
            raise ConfigError(f"this is said elsewhere; write it as `{ELSEWHERE[name]}`", key=key)
        if name not in allowed:
            close = near(name, allowed)
            hint = f"did you mean {close}?" if close else f"it has {', '.join(allowed)}"
            raise ConfigError(f"{chosen.name} has no such hyperparameter; {hint}", key=key)
        default = parameters[name].default
        if isinstance(default, (int, float)) and not isinstance(value, (int, float)) and "tuple" not in str(parameters[name].annotation):
            raise ConfigError(
                f"{value!r} is no {'truth value' if isinstance(default, bool) else 'number'}; the default is {default}", key=key
            )
    arguments = dict(training.hyperparameters)
    if "policy_kwargs" in arguments:
        arguments["policy_kwargs"] = _policy_arguments(arguments["policy_kwargs"])
    return arguments


def _policy_arguments(given: Any) -> dict[str, Any]:
    """Classes have names in a file: `activation_fn: relu`, `optimizer_class: AdamW` (any of torch.optim)."""
    key = "training.hyperparameters.policy_kwargs"
    if not isinstance(given, dict):
        raise ConfigError(f"{given!r} is no mapping; write one such as {{net_arch: [64, 64], activation_fn: relu}}", key=key)
    arguments = dict(given)
    if (activation := arguments.get("activation_fn")) is not None:
        if activation not in ACTIVATIONS:
            raise ConfigError(f"{activation!r} is no known activation; write one of {', '.join(ACTIVATIONS)}", key=f"{key}.activation_fn")
        arguments["activation_fn"] = ACTIVATIONS[activation]
    if (optimizer := arguments.get("optimizer_class")) is not None:
        found = getattr(torch.optim, optimizer, None) if isinstance(optimizer, str) else None
        if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
            raise ConfigError(f"{optimizer!r} is no optimiser of torch.optim; write one such as Adam", key=f"{key}.optimizer_class")
        arguments["optimizer_class"] = found
    return arguments


def _buffers(learner: type[BaseAlgorithm], observations: Space[Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Buffers that leave out what a sandbox's failure broke, for learners that let their buffer be chosen."""
    parameters = inspect.signature(learner.__init__).parameters
    keyed = isinstance(observations, spaces.Dict)
    if "rollout_buffer_class" in parameters:
        return {"rollout_buffer_class": SandboxDictRolloutBuffer if keyed else SandboxRolloutBuffer}
    if "replay_buffer_class" not in parameters:
        return {}
    n_steps = arguments.pop("n_steps", 1)
    if n_steps == 1:
        return {"replay_buffer_class": SandboxDictReplayBuffer if keyed else SandboxReplayBuffer}
    if keyed:
        raise ConfigError("returns over several steps need array observations; write 1", key="training.hyperparameters.n_steps")
    gamma = arguments.get("gamma", parameters["gamma"].default)
    return {"replay_buffer_class": SandboxNStepReplayBuffer, "replay_buffer_kwargs": {"n_steps": n_steps, "gamma": gamma}}


def _policy(observations: Space[Any]) -> str:
    if isinstance(observations, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(observations) else "MlpPolicy"


def _require_observations(observations: Space[Any]) -> None:
    flat = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    parts = observations.spaces.values() if isinstance(observations, spaces.Dict) else [observations]
    for part in parts:
        if not isinstance(part, flat):
            raise CapabilityError(
                f"no network can be built for the environment's observations, {observations}: {type(part).__name__} is no array.",
                remedy="Observe a Box, Discrete, MultiDiscrete or MultiBinary space, or one Dict of such.",
            )
