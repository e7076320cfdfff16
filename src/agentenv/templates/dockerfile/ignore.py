"""Which files of a build's directory do not belong to it: the patterns of a .dockerignore file.

They are those of Go's `filepath.Match`, with `**` for any number of directories; the last that matches counts, and `!` takes back
(https://docs.docker.com/build/concepts/context/#dockerignore-files). They differ from git's, so that packages for those do not fit.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from agentenv.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Ignored:
    """The patterns of a file, in order: each as written without `!`, and whether it takes back."""

    patterns: tuple[tuple[str, bool], ...] = ()

    @classmethod
    def parse(cls, text: str, file: str = ".dockerignore") -> Ignored:
        """The patterns in a file's text. Raises `ConfigError` for one that is none, with its line."""
        found = []
        for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
            if line.startswith("#") or not line.strip():
                continue
            pattern = line.strip()
            negated = pattern.startswith("!")
            cleaned = posixpath.normpath(pattern[negated:].strip() or ".").lstrip("/")
            if negated and not pattern[1:].strip():
                raise ConfigError("'!' stands alone", file=file, line=number)
            try:
                translate(cleaned)
            except ValueError as error:
                raise ConfigError(str(error), file=file, line=number) from error
            if cleaned not in (".", ""):
                found.append((cleaned, negated))
        return cls(tuple(found))

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Ignored:
        """The patterns of a list."""
        return cls.parse("\n".join(patterns))

    def matches(self, path: str) -> bool:
        """Whether `path` (relative, with `/`) is left out, by itself or by a directory above it."""
        parts = path.split("/")
        ignored, above = False, [False] * len(self.patterns)
        for count in range(1, len(parts) + 1):
            ignored, above = self._decide("/".join(parts[:count]), above)
        return ignored

    def _decide(self, path: str, above: list[bool]) -> tuple[bool, list[bool]]:
        """Whether a path is left out, and which patterns matched it; `above` has those that matched its directory, and so match it too."""
        ignored, matched = False, []
        for (pattern, negated), match in zip(self.patterns, above, strict=True):
            # A pattern that could change nothing is not asked, and so does not count for what lies below either.
            match = match or (negated == ignored and translate(pattern).fullmatch(path) is not None)
            matched.append(match)
            if match:
                ignored = not negated
        return ignored, matched

    def may_take_back_below(self, directory: str) -> bool:
        """Whether something in a directory that is left out may belong to the build all the same."""
        return any(negated for _, negated in self.patterns) and bool(directory)


@cache
def translate(pattern: str) -> re.Pattern[str]:
    """The regular expression of a pattern. Raises ValueError for one that is none."""
    expression, position = "", 0
    while position < len(pattern):
        character = pattern[position]
        if pattern.startswith("**/", position):
            expression, position = f"{expression}(?:.*/)?", position + 3
        elif pattern.startswith("**", position):
            expression, position = f"{expression}.*", position + 2
        elif character == "*":
            expression, position = f"{expression}[^/]*", position + 1
        elif character == "?":
            expression, position = f"{expression}[^/]", position + 1
        elif character == "[":
            found = re.compile(r"\[(\^?)((?:\\.|[^\]\\])+)\]").match(pattern, position)
            if found is None:
                raise ValueError(f"{pattern!r} has a bracket that does not close")
            inner = re.sub(r"\\(.)|([\[&~|])", lambda part: "\\" + (part[1] or part[2]), found[2])
            expression, position = f"{expression}(?!/)[{found[1]}{inner}]", found.end()
        elif character == "\\":
            if position + 1 == len(pattern):
                raise ValueError(f"{pattern!r} ends with an escape")
            expression, position = expression + re.escape(pattern[position + 1]), position + 2
        else:
            expression, position = expression + re.escape(character), position + 1
    try:
        return re.compile(expression, re.DOTALL)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no pattern: {error}") from error
