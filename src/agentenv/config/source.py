"""Reads a YAML file into plain data and remembers on which line each key stands.

Scalars follow the YAML 1.2 core schema (https://yaml.org/spec/1.2.2/#103-core-schema), so that `1e6` and `3e-4` are numbers while `no` and
`1:30` are text; digits may be grouped as in `1_000_000`. A key that occurs twice, a key that is no text and an alias that contains itself
are problems, not surprises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agentenv.config.problems import Key, Problem, invalid
from agentenv.naming import near

_LARGEST_FILE = 1_000_000
_MOST_VALUES = 1_000_000
"""With aliases written out: a few lines of them can stand for billions of values."""


class _CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2."""


_CoreLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9_]*)|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    _CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


@dataclass(frozen=True, slots=True)
class Source:
    """What was read: plain `data`, and for a file its name and the tree of nodes with their positions."""

    data: Mapping[str, Any]
    folder: Path
    file: str | None = None
    node: yaml.Node | None = None
    problems: list[Problem] = field(default_factory=list)

    def line(self, key: Key) -> int | None:
        """The line (from 1) of `key`, or of the nearest enclosing key that is there; None for data that came from no file."""
        if self.node is None:
            return None
        node, line = self.node, self.node.start_mark.line + 1
        for part in key:
            found = _child(node, part)
            if found is None:
                break
            node, line = found
        return line


def read_file(path: Path) -> Source:
    """The content of a YAML file. Raises `InvalidConfig` for a file that is missing, unreadable, too large or not YAML."""
    name = str(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        siblings = [entry.name for entry in path.parent.iterdir() if entry.suffix in {".yaml", ".yml"}] if path.parent.is_dir() else []
        hint = near(path.name, siblings)
        remedy = f"Did you mean {path.parent / hint}?" if hint else "Give the path of a YAML file; docs/configuration.md shows one."
        raise invalid(Problem("there is no such file.", file=name, remedy=remedy)) from None
    except OSError as error:
        raise invalid(Problem(f"cannot be read: {error.strerror}.", file=name, remedy="Give the path of a readable YAML file.")) from error
    if len(raw) > _LARGEST_FILE:
        raise invalid(
            Problem(f"has {len(raw)} bytes; a configuration has at most {_LARGEST_FILE}.", file=name, remedy="Is it the right file?")
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise invalid(Problem("is not UTF-8 text.", file=name, line=line, remedy="Save it as UTF-8.")) from error
    return read_text(text, name=name, folder=path.parent)


def read_text(text: str, *, name: str, folder: Path) -> Source:
    """The same for text; `name` stands for the file in messages, relative paths in it are taken from `folder`."""
    try:
        loader = _CoreLoader(text)
        node = loader.get_single_node()
        if node is None:
            raise invalid(Problem("is empty.", file=name, line=1, remedy="Write at least `environment: {name: basic_rl_env}`."))
        problems = list(_structure_problems(node, name))
        if any(problem.fatal for problem in problems):
            raise invalid(*problems)
        if (count := _written_out(node, {})) > _MOST_VALUES:
            raise invalid(Problem(f"stands for {count} values, its aliases written out.", file=name, remedy="Use fewer aliases."))
        data = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise invalid(_syntax_problem(error, name)) from error
    except (yaml.YAMLError, ValueError) as error:
        raise invalid(Problem(f"is not YAML: {error}.", file=name, remedy="Mend the text there.")) from error
    except RecursionError:
        raise invalid(Problem("is nested too deeply.", file=name, remedy="A configuration needs no more than a few levels.")) from None
    if not isinstance(data, dict):
        what = f"must be a mapping of sections at its top, not {'a list' if isinstance(data, list) else repr(data)}."
        raise invalid(*problems, Problem(what, file=name, line=1, remedy="Begin with `environment:`."))
    return Source(data, folder, name, node, problems)


def _syntax_problem(error: yaml.MarkedYAMLError, name: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    what = error.problem or error.context or "unreadable"
    if "cannot start any token" in what and "\\t" in what:
        return Problem(
            "a tab stands where YAML wants spaces.", file=name, line=mark.line + 1 if mark else None, remedy="Indent with spaces."
        )
    opened = f" (begun on line {error.context_mark.line + 1})" if error.context_mark and error.context_mark is not mark else ""
    column = f", column {mark.column + 1}" if mark else ""
    return Problem(
        f"is not YAML{column}: {what}{opened}.",
        file=name,
        line=mark.line + 1 if mark else None,
        remedy="Check indentation, colons and quotes there.",
    )


def _structure_problems(root: yaml.Node, name: str) -> Iterator[Problem]:
    """Every doubled key, every key that is no text and every alias that contains itself; each node is looked at once."""
    visited: set[int] = set()

    def walk(node: yaml.Node, key: Key, enclosing: tuple[int, ...]) -> Iterator[Problem]:
        line = node.start_mark.line + 1
        if id(node) in enclosing:
            yield Problem("an alias refers to what contains it.", file=name, line=line, key=key, remedy="Write the value out.", fatal=True)
        if id(node) in visited:
            return
        visited.add(id(node))
        inside = (*enclosing, id(node))
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                yield from walk(item, (*key, index), inside)
        elif isinstance(node, yaml.MappingNode):
            yield from _key_problems(node, key, name)
            for key_node, value in node.value:
                yield from walk(value, (*key, str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"), inside)

    yield from walk(root, (), ())


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values `node` stands for; `known` holds those of nodes that were counted before."""
    if id(node) not in known:
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        children = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_written_out(child, known) for child in children)
    return known[id(node)]


def _key_problems(node: yaml.MappingNode, key: Key, name: str) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for key_node, _ in node.value:
        line = key_node.start_mark.line + 1
        if key_node.tag.endswith(":merge"):
            continue
        if not isinstance(key_node, yaml.ScalarNode) or not key_node.tag.endswith(":str"):
            shown = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
            yield Problem(f"the key {shown} is not text.", file=name, line=line, key=key, remedy="Put the key in quotes.", fatal=True)
        elif key_node.value in seen:
            what = f"stands here a second time; line {seen[key_node.value]} has it already."
            yield Problem(what, file=name, line=line, key=(*key, key_node.value), remedy="Keep one of the two.")
        else:
            seen[key_node.value] = line


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key_node, value in node.value:
            if key_node.value == part:
                return value, key_node.start_mark.line + 1
    return None
