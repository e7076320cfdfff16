"""Splits a Dockerfile into instructions: continued lines, comments, parser directives, here-documents.

As https://docs.docker.com/reference/dockerfile/ defines them. Own code, since the packages that read Dockerfiles are made for other ends:
`dockerfile-parse` for rewriting them (it knows no flags, here-documents or `${NAME:-default}`, and refuses nothing), `dockerfile` binds Go.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentenv.errors import ConfigError

_DIRECTIVE = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(.*?)\s*")
_KNOWN_DIRECTIVES = ("syntax", "escape", "check")
_HEREDOC = re.compile(r"<<(-?)\s*([\"']?)([A-Za-z_][A-Za-z0-9_.-]*)\2")
_TAKE_HEREDOCS = ("RUN", "COPY", "ADD")


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A here-document: its name, its text, and whether variables in it are to be replaced."""

    name: str
    content: str
    expand: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its word in capitals, what follows on its (put together) line, and the number of its first line."""

    word: str
    rest: str
    line: int
    heredocs: tuple[Heredoc, ...] = ()


def split(text: str, file: str) -> tuple[list[Instruction], str]:
    """The instructions of a Dockerfile, and its escape character. Raises `ConfigError` with the line."""
    lines = text.removeprefix("\ufeff").splitlines()
    escape, position = _directives(lines, file)
    found = []
    while position < len(lines):
        if _is_empty(lines[position]):
            position += 1
            continue
        first = position
        whole, position = _joined(lines, position, escape)
        word, _, rest = re.sub(r"\s", " ", whole.strip(), count=1).partition(" ")
        heredocs: tuple[Heredoc, ...] = ()
        if word.upper() in _TAKE_HEREDOCS and "<<" in rest:
            heredocs, position = _heredocs(rest, lines, position, file, first + 1)
        found.append(Instruction(word.upper(), rest.strip(), first + 1, heredocs))
    return found, escape


def _directives(lines: Sequence[str], file: str) -> tuple[str, int]:
    """Parser directives stand at the very top, one a line; the first other line ends them."""
    escape, seen = "\\", set[str]()
    for number, line in enumerate(lines):
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None or match[1].lower() not in _KNOWN_DIRECTIVES:
            return escape, number
        name = match[1].lower()
        if name in seen:
            raise ConfigError(f"the directive {name!r} is there twice", file=file, line=number + 1)
        seen.add(name)
        if name == "escape":
            if match[2] not in ("\\", "`"):
                raise ConfigError(f"the escape character is {match[2]!r}; it is \\ or `", file=file, line=number + 1)
            escape = match[2]
    return escape, len(lines)


def _is_empty(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _joined(lines: Sequence[str], position: int, escape: str) -> tuple[str, int]:
    """The line at `position` with those that continue it; comments and empty lines among them are left out."""
    parts: list[str] = []
    while position < len(lines):
        line = lines[position]
        position += 1
        if parts and _is_empty(line):
            continue
        stripped = line.rstrip()
        if not stripped.endswith(escape):
            parts.append(line)
            break
        parts.append(stripped.removesuffix(escape))
    return "".join(parts), position


def _heredocs(rest: str, lines: Sequence[str], position: int, file: str, line: int) -> tuple[tuple[Heredoc, ...], int]:
    found = []
    for match in _HEREDOC.finditer(rest):
        strip_tabs, quote, name = match[1] == "-", match[2], match[3]
        content = []
        while True:
            if position == len(lines):
                raise ConfigError(f"the here-document {name!r} does not end", file=file, line=line, remedy=f"End it with a line {name}.")
            text = lines[position].lstrip("\t") if strip_tabs else lines[position]
            position += 1
            if text == name:
                break
            content.append(f"{text}\n")
        found.append(Heredoc(name, "".join(content), not quote))
    return tuple(found), position
