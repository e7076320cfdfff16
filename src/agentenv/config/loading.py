"""Loads a configuration from a file or a mapping and reports everything that is wrong with it at once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from agentenv.config.checks import MachineFacts, Surroundings
from agentenv.config.explain import explain
from agentenv.config.models import Config
from agentenv.config.problems import Key, Problem, invalid
from agentenv.config.source import Source, read_file, read_text
from agentenv.errors import NotFound
from agentenv.paths import HERE, SERVER_VARIABLE

Lookups = Mapping[Key, Callable[[Any], object]]
"""For keys whose values are names that a registry above this room knows: what looks a name up and raises `NotFound` for an unknown one."""

_NO_LOOKUPS: Lookups = MappingProxyType({})


def load(source: str | Path | Mapping[str, Any] | Config, *, machine: MachineFacts | None = None, lookups: Lookups = _NO_LOOKUPS) -> Config:
    """The configuration in a YAML file (`source` is its path) or a mapping of the same shape.

    Relative paths in it are taken from the file's folder (a mapping's: from the working directory) and made absolute. Limits are compared
    with `machine`, by default this one, or none where the sandboxes are to be a server's, which compares them itself; names are looked up
    with `lookups`. Raises `InvalidConfig` (a `ConfigError`) with every problem:
    file, line, key, what would be right.
    """
    if isinstance(source, Config):
        return source
    if isinstance(source, Mapping):
        return _checked(Source(source, Path.cwd()), machine, lookups)
    return _checked(read_file(Path(source).expanduser()), machine, lookups)


def loads(text: str, *, name: str = "<text>", folder: Path | None = None, machine: MachineFacts | None = None) -> Config:
    """The same for YAML text; `name` stands for the file in messages."""
    return _checked(read_text(text, name=name, folder=folder or Path.cwd()), machine, _NO_LOOKUPS)


def _checked(source: Source, machine: MachineFacts | None, lookups: Lookups) -> Config:
    surroundings = Surroundings(machine or (None if _is_for_a_server(source) else MachineFacts.here()), source.folder)
    try:
        config = Config.model_validate(source.data, context=surroundings)
    except ValidationError as error:
        raise invalid(*source.problems, *_located(explain(error, Config), source)) from None
    problems = [*source.problems, *_located(_unknown_names(config, lookups), source)]
    if problems:
        raise invalid(*problems)
    return config


def _is_for_a_server(source: Source) -> bool:
    """Whether the sandboxes are to be made elsewhere, by `environment.server` or by AGENTENV_SERVER."""
    environment = source.data.get("environment")
    named = environment.get("server") if isinstance(environment, Mapping) else None
    return (named or os.environ.get(SERVER_VARIABLE) or HERE) != HERE


def _located(problems: Iterable[Problem], source: Source) -> list[Problem]:
    return [dataclasses.replace(problem, file=source.file, line=source.line(problem.key)) for problem in problems]


def _unknown_names(config: Config, lookups: Lookups) -> Iterator[Problem]:
    for key, look_up in lookups.items():
        value: Any = config
        for part in key:
            value = getattr(value, str(part), None)
        if value is None:
            continue
        try:
            look_up(value)
        except NotFound as error:
            yield Problem(error.message, key=key, remedy=error.remedy)
