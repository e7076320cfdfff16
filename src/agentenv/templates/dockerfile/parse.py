"""A Dockerfile as a plan (https://docs.docker.com/reference/dockerfile/)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from agentenv.errors import ConfigError
from agentenv.naming import near
from agentenv.templates.dockerfile.instructions import INSTRUCTIONS, UNSUPPORTED, Reader
from agentenv.templates.dockerfile.lines import Instruction, split
from agentenv.templates.dockerfile.words import BadWord
from agentenv.templates.plan import DeclareArg, Plan, Stage, Step

_FROM = re.compile(r"(?:--platform=(?P<platform>\S+)\s+)?(?P<base>\S+)(?:\s+[Aa][Ss]\s+(?P<name>\S+))?")
_STAGE = re.compile(r"[a-z][a-z0-9-_.]*")


def parse(text: str, file: str = "Dockerfile") -> Plan:
    """The plan of a Dockerfile. Raises `ConfigError` with the line for what is wrong or not supported."""
    instructions, escape = split(text, file)
    args: list[DeclareArg] = []
    stages: list[Stage] = []
    steps: list[Step] = []
    for instruction in instructions:
        try:
            if instruction.word == "FROM":
                _close(stages, steps)
                stages.append(_stage(instruction, len(stages), stages))
                continue
            step = _step(instruction, Reader(escape))
        except BadWord as error:
            raise ConfigError(error.message, file=file, line=instruction.line) from error
        except ConfigError as error:
            raise ConfigError(error.message, file=file, line=instruction.line, remedy=error.remedy) from error
        if stages:
            steps.append(step)
        elif isinstance(step, DeclareArg):
            args.append(step)
        else:
            raise ConfigError(
                f"{instruction.word} stands before the first FROM", file=file, line=instruction.line, remedy="Begin with FROM."
            )
    if not stages:
        raise ConfigError("it has no FROM", file=file, remedy="Begin with `FROM debian` or another image.")
    _close(stages, steps)
    return Plan(tuple(stages), tuple(args), escape, file)


def read(path: Path) -> Plan:
    """The plan of the Dockerfile at `path`. Raises `ConfigError`, also where there is none."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"it cannot be read: {getattr(error, 'strerror', None) or error}", file=str(path)) from error
    return parse(text, str(path))


def _close(stages: list[Stage], steps: list[Step]) -> None:
    """The steps so far belong to the stage before."""
    if stages:
        last = stages[-1]
        stages[-1] = Stage(last.name, last.base, last.line, tuple(steps))
        steps.clear()


def _stage(instruction: Instruction, number: int, before: Sequence[Stage]) -> Stage:
    match = _FROM.fullmatch(instruction.rest)
    if match is None:
        raise ConfigError(f"FROM {instruction.rest!r} is not FROM IMAGE [AS NAME]")
    name = (match["name"] or str(number)).lower()
    if match["name"] and not _STAGE.fullmatch(name):
        raise ConfigError(f"{match['name']!r} is no name for a stage", remedy="Use a-z first, then also 0-9, '-', '_' and '.'.")
    if any(stage.name == name for stage in before):
        raise ConfigError(f"there is a stage {name!r} already")
    return Stage(name, match["base"], instruction.line)


def _step(instruction: Instruction, reader: Reader) -> Step:
    made = INSTRUCTIONS.get(instruction.word)
    if made is None:
        if reason := UNSUPPORTED.get(instruction.word):
            raise ConfigError(f"{instruction.word} is not supported: {reason}")
        known = sorted({*INSTRUCTIONS, "FROM"})
        meant = near(instruction.word, known)
        remedy = f"Did you mean {meant}?" if meant else f"There are {', '.join(known)}."
        raise ConfigError(f"there is no instruction {instruction.word!r}", remedy=remedy)
    if not instruction.rest:
        raise ConfigError(f"{instruction.word} says nothing")
    return made(reader, instruction)
