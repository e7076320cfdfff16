"""Evaluates what a run has learned, at any of its checkpoints and over as many episodes as wanted."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from agentenv.config import TrainingConfig
from agentenv.errors import NotFound
from agentenv.monitoring import NullSink, RunDirectory, find_run
from agentenv.train import checkpoint
from agentenv.train.environments import MakeEnvs, sandboxed
from agentenv.train.evaluation import Evaluation, play, random_policy
from agentenv.train.jobs import recorded_config
from agentenv.train.learner import build, use_threads
from agentenv.train.loop import checkpoint_name, checkpoints_in, latest_checkpoint
from agentenv.train.manifest import evaluation_seed
from agentenv.train.registry import Algorithm, algorithm
from agentenv.train.vec_env import GymnasiumVecEnv

ABOUT_LEARNING = {"n_steps", "n_epochs", "train_freq", "gradient_steps", "buffer_size", "learning_starts"}
"""Hyperparameters that say how experience is collected and kept: of no use to a learner that only acts, but tied to its number of lanes."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """An evaluation of a run's policy at `step`, and of uniformly random actions in the same episodes."""

    run: Path
    step: int
    policy: Evaluation
    chance: Evaluation


def evaluate(
    run: str | Path | None = None,
    *,
    episodes: int | None = None,
    checkpoint_at: int | str | Path | None = None,
    num_envs: int | None = None,
    seed: int | None = None,
    make_envs: MakeEnvs = sandboxed,
) -> Assessment:
    """Plays `episodes` (default: as configured) of a run's environment with its policy.

    `run` is a directory, an id or None for the latest; `checkpoint_at` a step or a file (default: the newest); `num_envs` how many play
    side by side; `seed` the first episode's (default: the run's evaluations'). Raises `NotFound` for what does not exist,
    `AgentEnvError` for a damaged checkpoint.
    """
    found = find_run(run)
    config = recorded_config(found)
    training = config.training
    assert training is not None
    assert training.seed is not None
    wanted = episodes or training.eval_episodes
    lanes = min(num_envs or training.num_envs, wanted)
    start = evaluation_seed(training.seed) if seed is None else seed
    path = chosen_checkpoint(found, checkpoint_at)
    state = checkpoint.read(path)
    chosen = algorithm(training.algorithm)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        use_threads()
        envs = GymnasiumVecEnv(make_envs(config.environment, lanes, NullSink()))
        stack.callback(envs.close)
        model = build(chosen, _only_acting(training, chosen), envs, training.seed).model
        checkpoint.load_parameters(model, state)

        def greedy(observations: Any) -> Any:
            return model.predict(observations, deterministic=True)[0]

        policy = play(greedy, envs, wanted, start)
        chance = play(random_policy(envs.action_space, lanes, start), envs, wanted, start)
    return Assessment(found.path, int(state["counters"]["num_timesteps"]), policy, chance)


def _only_acting(training: TrainingConfig, chosen: Algorithm) -> TrainingConfig:
    """The same network without the memory for learning."""
    kept = {name: value for name, value in training.hyperparameters.items() if name not in ABOUT_LEARNING}
    if "buffer_size" in signature(chosen.learner.__init__).parameters:
        kept["buffer_size"] = 1
    return training.model_copy(update={"hyperparameters": kept, "batch_size": None, "gradient_accumulation": 1})


def chosen_checkpoint(run: RunDirectory, which: int | str | Path | None) -> Path:
    """A run's checkpoint by step, file name or path; the newest for None. Raises `NotFound` with those that there are."""
    if which is None:
        return latest_checkpoint(run)
    text = str(which)
    name = checkpoint_name(int(text)) if text.isdigit() else text
    for candidate in (run.checkpoints / name, Path(text)):
        if candidate.is_file():
            return candidate
    there = ", ".join(path.name for path in checkpoints_in(run.checkpoints)) or "none"
    raise NotFound(f"run {run.id} has no checkpoint {which}; there are: {there}.")
