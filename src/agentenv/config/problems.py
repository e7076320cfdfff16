"""One thing that is wrong in a configuration, and the error that carries all of them."""

from __future__ import annotations

from dataclasses import dataclass

from agentenv.errors import ConfigError

Key = tuple[str | int, ...]
"""Where a value stands: ("environment", "network", "ports", 1)."""


def dotted(key: Key) -> str:
    """A key as people write it: environment.network.ports[1]."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where, and (`remedy`) what would be right. A `fatal` one leaves nothing to look at further."""

    message: str
    file: str | None = None
    line: int | None = None
    key: Key = ()
    remedy: str | None = None
    fatal: bool = False

    def to_dict(self) -> dict[str, object]:
        """The problem as plain data."""
        return {"file": self.file, "line": self.line, "key": dotted(self.key) or None, "message": self.message, "remedy": self.remedy}

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        prefix = ": ".join(part for part in (where, dotted(self.key)) if part)
        text = f"{prefix}: {self.message}" if prefix else self.message
        return f"{text} {self.remedy}" if self.remedy else text


class InvalidConfig(ConfigError):
    """A configuration with one or more problems, in the order of their lines; `file`, `line` and `key` are those of the first."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        first = problems[0]
        super().__init__(first.message, file=first.file, line=first.line, key=dotted(first.key) or None, remedy=first.remedy)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)

    def __reduce__(self) -> tuple[type[InvalidConfig], tuple[tuple[Problem, ...]]]:
        return (InvalidConfig, (self.problems,))


def invalid(*problems: Problem) -> InvalidConfig:
    """The error for `problems` (at least one), sorted by line and without repetitions."""
    unique = dict.fromkeys(problems)
    return InvalidConfig(tuple(sorted(unique, key=lambda problem: problem.line or 0)))
