"""Loads a configuration from a file or a mapping and reports everything that is wrong with it at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentenv.config.checks import MachineFacts, Surroundings
from agentenv.config.explain import explain
from agentenv.config.models import Config, TrainingConfig
from agentenv.config.problems import invalid
from agentenv.config.source import Source, read_file, read_text
from agentenv.errors import ConfigError


def load(source: str | Path | Mapping[str, Any] | Config, *, machine: MachineFacts | None = None) -> Config:
    """The configuration in a YAML file (`source` is its path) or a mapping of the same shape.

    Relative paths in it are taken from the file's folder (a mapping's: from the working directory) and made absolute. Limits are compared
    with `machine`, by default this one. Raises `InvalidConfig` (a `ConfigError`) with every problem: file, line, key, what would be right.
    """
    if isinstance(source, Config):
        return source
    if isinstance(source, Mapping):
        return _checked(Source(source, Path.cwd()), machine)
    return _checked(read_file(Path(source).expanduser()), machine)


def loads(text: str, *, name: str = "<text>", folder: Path | None = None, machine: MachineFacts | None = None) -> Config:
    """The same for YAML text; `name` stands for the file in messages."""
    return _checked(read_text(text, name=name, folder=folder or Path.cwd()), machine)


def _checked(source: Source, machine: MachineFacts | None) -> Config:
    surroundings = Surroundings(machine or MachineFacts.here(), source.folder)
    try:
        config = Config.model_validate(source.data, context=surroundings)
    except ValidationError as error:
        located = (dataclasses.replace(problem, file=source.file, line=source.line(problem.key)) for problem in explain(error))
        raise invalid(*source.problems, *located) from None
    if source.problems:
        raise invalid(*source.problems)
    return config


def replace_training(config: Config, changes: Mapping[str, object]) -> Config:
    """`Config.with_training`'s work."""
    if config.training is None:
        raise ConfigError("there is no `training` section.", remedy="Add one with `algorithm` and `max_steps`.")
    given = {name: value for name, value in changes.items() if value is not None}
    try:
        training = TrainingConfig.model_validate(config.training.model_dump() | given)
    except ValidationError as error:
        located = (dataclasses.replace(problem, key=("training", *problem.key)) for problem in explain(error, TrainingConfig))
        raise invalid(*located) from None
    return config.model_copy(update={"training": training})
