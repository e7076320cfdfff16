"""What steps leave behind besides files: variables, user, directory, shell, notes."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentenv.isolation.contract import RootFilesystem
from agentenv.node.snapshots import Defaults
from agentenv.templates.dockerfile.words import expand
from agentenv.templates.plan import Command, DeclareArg, Note, SetEnv

SHELL = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True)
class State:
    """`env` stays with the template, `args` is known to the build only; `facts` are notes (labels, ports, command, …)."""

    env: Mapping[str, str] = field(default_factory=dict)
    args: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    cwd: str = "/"
    shell: tuple[str, ...] = SHELL
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_image(cls, image: RootFilesystem) -> State:
        """What an image gives."""
        return cls(dict(image.env), {}, image.user, image.cwd)

    @property
    def variables(self) -> Mapping[str, str]:
        """What words of steps may name, and commands find in their environment: ENV goes before ARG."""
        return {**self.args, **self.env}

    @property
    def defaults(self) -> Defaults:
        """For the sandboxes of the template."""
        return Defaults(dict(self.env), self.user, self.cwd)

    def expand(self, word: str, escape: str, *, verbatim: bool = False) -> str:
        """A word with its variables replaced; raises `BadWord`."""
        return word if verbatim else expand(word, self.variables, escape)

    def with_env(self, step: SetEnv, escape: str) -> State:
        """All values are taken before any of them is set."""
        added = {name: self.expand(value, escape, verbatim=step.verbatim) for name, value in step.pairs}
        return replace(self, env={**self.env, **added})

    def with_args(self, step: DeclareArg, given: Mapping[str, str], before: Mapping[str, str], escape: str) -> State:
        """A value that was given to the build goes before the default, and that before the one declared before the first stage."""
        args = dict(self.args)
        for name, default in step.pairs:
            value = given.get(name)
            if value is None and default is not None:
                value = expand(default, {**args, **self.env}, escape)
            if value is None:
                value = before.get(name)
            if value is not None:
                args[name] = value
        return replace(self, args=args)

    def with_note(self, step: Note, escape: str) -> State:
        """Labels are added to those there are; everything else takes the place of what was noted before. CMD goes with its ENTRYPOINT."""
        facts = dict(self.facts)
        if isinstance(step.value, Mapping):
            labels = {expand(name, self.variables, escape): expand(value, self.variables, escape) for name, value in step.value.items()}
            facts[step.fact] = {**facts.get(step.fact, {}), **labels}
        elif step.fact in ("exposed", "volumes") and isinstance(step.value, tuple):
            known = facts.get(step.fact, [])
            facts[step.fact] = [*known, *(word for part in step.value for word in expand(part, self.variables, escape).split())]
        else:
            facts[step.fact] = list(step.value) if isinstance(step.value, tuple) else step.value
            if step.fact == "entrypoint":
                facts.pop("cmd", None)
        return replace(self, facts=facts)

    def path(self, path: str) -> str:
        """A path of a step: relative ones begin at the working directory. A slash at its end is kept."""
        joined = posixpath.normpath(posixpath.join("/", self.cwd, path))
        joined = f"/{joined.lstrip('/')}"
        return f"{joined}/" if path.endswith(("/", "/.")) and joined != "/" else joined

    def argv(self, command: Command) -> list[str]:
        """The program and arguments that a command is."""
        return [*self.shell, command] if isinstance(command, str) else list(command)
