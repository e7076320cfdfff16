"""Holds the floors of docs/architecture.md: imports point downwards only, and never in a circle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import agentenv

SOURCE = Path(agentenv.__file__).parent
FLOORS = [
    {"cli"},
    {"benchmarks"},
    {"train"},
    {"envs"},
    {"sandbox"},
    {"node"},
    {"images"},
    {"isolation"},
    {"guest"},
    {"monitoring"},
    {"config"},
    {"naming", "paths", "units"},
    {"errors"},
]
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    """Absolute names of the agentenv modules that `path` imports anywhere, inside functions too."""
    tree = ast.parse(path.read_text())
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.startswith("agentenv.")}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(path: Path) -> None:
    own = room(path)
    assert own in LEVEL, f"{own} has no floor in docs/architecture.md"
    upwards = {name for name in imported_modules(path) if LEVEL.get(name.split(".")[1], LEVEL[own]) < LEVEL[own]}
    sideways = {name for name in imported_modules(path) if (other := name.split(".")[1]) != own and LEVEL.get(other) == LEVEL[own]}
    assert not upwards, f"imports from a floor above: {upwards}"
    assert not sideways, f"imports from another room of its own floor: {sideways}"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(("agentenv", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def top_level_imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def test_no_circles() -> None:
    graph = {module_name(path): top_level_imports(path) for path in modules()}
    graph = {name: {other for other in imports if other in graph and other != name} for name, imports in graph.items()}
    # A module may import a sibling through its package; the package's own hand-out imports are no circle of modules.
    packages = {module_name(path) for path in modules() if path.name == "__init__.py"}
    graph = {name: imports - packages for name, imports in graph.items() if name not in packages}
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name in done:
            return
        for other in sorted(graph[name]):
            walk(other, (*path, name))
        done.add(name)

    for name in graph:
        walk(name, ())
    assert done == set(graph)
