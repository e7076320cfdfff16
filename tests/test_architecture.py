"""Holds docs/architecture.md: imports point downwards only and never in a circle; files are short; everything says what it is for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import agentenv

SOURCE = Path(agentenv.__file__).parent
REPOSITORY = SOURCE.parents[1]
FLOORS = [
    {"cli"},
    {"benchmarks"},
    {"server"},
    {"train"},
    {"envs"},
    {"templates"},
    {"conformance"},
    {"sandbox"},
    {"node"},
    {"images"},
    {"isolation"},
    {"egress"},
    {"guest"},
    {"monitoring"},
    {"config"},
    {"destinations", "naming", "paths", "units", "version"},
    {"errors"},
]
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
LONGEST_FILE = 400
LONGEST_FUNCTION = 60
GENERATED = SOURCE / "sandbox" / "sync.py"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def source_name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


MODULES = sorted(SOURCE.rglob("*.py"))
every_module = pytest.mark.parametrize("path", MODULES, ids=source_name)
every_inner_module = pytest.mark.parametrize("path", MODULES[1:], ids=source_name)


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(("agentenv", *(parts[:-1] if parts[-1] == "__init__" else parts)))


NAMES = {module_name(path) for path in MODULES}


def imports(path: Path) -> set[str]:
    """The modules of agentenv that `path` names in an import anywhere: inside functions and for type checkers alone, too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            # `from package import module` is an import of that module, `from package import name` one of the package.
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in NAMES else str(node.module) for name in inner}
    return found & NAMES


def test_the_front_door_comes_first() -> None:
    assert MODULES[0] == SOURCE / "__init__.py"


@every_inner_module
def test_imports_point_downwards(path: Path) -> None:
    own = room(path)
    assert own in LEVEL, f"{own} has no floor in docs/architecture.md"
    for name in imports(path) - {"agentenv"}:
        other = name.split(".")[1]
        assert LEVEL[other] >= LEVEL[own], f"{name} lies on a floor above"
        assert other == own or LEVEL[other] != LEVEL[own], f"{name} is another room of the same floor"


@every_inner_module
def test_nothing_inside_comes_through_the_front_door(path: Path) -> None:
    assert "agentenv" not in imports(path), "take each name from the module that has it"


def test_no_circles() -> None:
    graph = {module_name(path): imports(path) for path in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_the_floors_are_those_of_the_documentation() -> None:
    drawing = (REPOSITORY / "docs" / "architecture.md").read_text().split("```")[1]
    beginnings = re.findall(r"^(?:\w+(?:/|\.py)\s+)+", drawing, re.MULTILINE)
    order = [name for names in beginnings for name in re.findall(r"(\w+)(?:/|\.py)", names)]
    assert sorted(order) == sorted(LEVEL)
    assert [LEVEL[name] for name in order] == sorted(LEVEL.values())


@every_module
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert path == GENERATED or len(text.splitlines()) <= LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, f"{node.name} is too long"


@pytest.mark.parametrize("path", sorted((REPOSITORY / "native").rglob("*.[ch]")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_native_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


def public(module: ast.Module) -> Iterator[ast.ClassDef | Function]:
    for node in module.body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            overload = any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in node.decorator_list)
            if not overload:
                yield node


@every_module
def test_all_says_what_it_is_for(path: Path) -> None:
    module = ast.parse(path.read_text())
    assert ast.get_docstring(module), "the module has no docstring"
    assert not [node.name for node in public(module) if not ast.get_docstring(node)]


def test_there_is_one_version() -> None:
    native = (REPOSITORY / "native" / "agent" / "agent.h").read_text()
    assert f'#define AGENT_VERSION "{agentenv.__version__}"' in native
