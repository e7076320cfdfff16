"""What is to be trained: a new run of a configuration, or an old run that goes on."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.config import Config, TrainingConfig, load
from agentenv.errors import CapabilityError, ConfigError, NotFound
from agentenv.monitoring import RunDirectory, find_run

Source = str | Path | Mapping[str, Any] | Config


@dataclass(frozen=True, slots=True)
class Job:
    """A training that is ready to begin: its configuration, complete with a seed, and the run it goes on with, if any."""

    config: Config
    training: TrainingConfig
    seed: int
    file: Path | None
    resumed: RunDirectory | None

    @property
    def title(self) -> str:
        """One line that says what is trained."""
        lanes = f"{self.training.num_envs} environment{'s' if self.training.num_envs > 1 else ''}"
        verb = "Going on with" if self.resumed is not None else "Training"
        name = self.config.environment.name
        return f"{verb} {self.training.algorithm} on {name}: {self.training.max_steps:,} steps, {lanes}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Changes:
    """What the caller says beside the configuration; None leaves a value as it is."""

    max_steps: int | None = None
    num_envs: int | None = None
    seed: int | None = None


def new_job(config: Source | None, changes: Changes) -> Job:
    """A run from the start, with a seed drawn where none is configured. Raises `ConfigError`, `CapabilityError`."""
    if config is None:
        raise ConfigError("there is nothing to train.", remedy="Give a configuration, or a run to resume.")
    loaded = load(config)
    training = _training(loaded)
    if loaded.distributed_training is not None and loaded.distributed_training.enabled:
        raise CapabilityError(
            "this version trains on one machine, and `distributed_training.enabled` is true.", remedy="Write `enabled: false` there."
        )
    configured = changes.seed if changes.seed is not None else training.seed
    seed = configured if configured is not None else secrets.randbelow(2**31)
    loaded = loaded.with_training(max_steps=changes.max_steps, num_envs=changes.num_envs, seed=seed)
    file = Path(config).expanduser().absolute() if isinstance(config, (str, Path)) else None
    return Job(loaded, _training(loaded), seed, file, None)


def resumed_job(run_name: str | Path, config: Source | None, changes: Changes) -> Job:
    """A run that goes on with its own configuration, of which only `max_steps` may change. Raises `ConfigError`, `NotFound`."""
    run = find_run(run_name)
    recorded = recorded_config(run)
    training = _training(recorded)
    assert training.seed is not None
    for name, value in (("num_envs", changes.num_envs), ("seed", changes.seed)):
        if value is not None and value != getattr(training, name):
            raise ConfigError(
                f"run {run.id} was begun with {name} {getattr(training, name)}, so it cannot go on with {value}.",
                remedy="Leave it out, or start a new run.",
            )
    if config is not None:
        same = {"max_steps": training.max_steps, "num_envs": training.num_envs, "seed": training.seed}
        if load(config).with_training(**same).digest() != recorded.digest():
            raise ConfigError(
                f"the configuration is not the one that run {run.id} was begun with.",
                remedy="Leave it out to go on with the run's own, or start a new run.",
            )
    changed = recorded.with_training(max_steps=changes.max_steps)
    return Job(changed, _training(changed), training.seed, None, run)


def recorded_config(run: RunDirectory) -> Config:
    """The configuration in a run's manifest. Raises `NotFound` where there is none."""
    recorded = run.manifest().get("config")
    if not isinstance(recorded, dict):
        raise NotFound(f"run {run.id} has no manifest with a configuration.", remedy="Its training did not get that far; start a new one.")
    return load(recorded)


def _training(config: Config) -> TrainingConfig:
    if config.training is None:
        raise ConfigError("there is no `training` section.", remedy="Add one with `algorithm` and `max_steps`.")
    return config.training
