"""Which directories of this machine the image `host` shows: the system's programs and the running Python, at the paths where they lie."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from agentenv.isolation.contract import Tree
from agentenv.paths import PACKAGE

UNMERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Names beside /usr that hold programs and libraries: links into /usr on a merged system, directories of their own on others."""

WHOLE_STORES = (Path("/nix/store"), Path("/gnu/store"))
"""Package stores in which a program's libraries lie beside it: a Python from there needs all of the store."""

PREFIX_PARTS = ("bin", "lib", "lib64", "include")
"""What of a prefix is shown when it is a home directory, so that nothing private comes along."""

MOST_LINKS = 40
"""Links that the kernel follows in one path (path_resolution(7))."""

SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True, slots=True)
class PythonHome:
    """Where the running Python lies: its prefixes, its program, the agentenv package and the import path given from outside."""

    prefixes: tuple[Path, ...]
    executable: Path
    package: Path
    import_path: tuple[Path, ...] = ()

    @classmethod
    def running(cls) -> PythonHome:
        """Of this process."""
        prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        return cls(
            tuple(dict.fromkeys(map(Path, prefixes))),
            Path(sys.executable),
            PACKAGE,
            tuple(Path(entry).absolute() for entry in given if entry),
        )


@dataclass(slots=True)
class HostLayout:
    """The trees of the image (target -> directory of the host), and what the skeleton must hold so that every path leads to them."""

    trees: dict[Path, Path] = field(default_factory=dict)
    links: dict[Path, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    package: Path | None = None
    """The agentenv package where it lies outside of the trees: small enough to copy, and one mount less for every start."""

    path: tuple[str, ...] = SYSTEM_PATH
    import_path: tuple[str, ...] = ()

    def covers(self, path: Path) -> bool:
        """Whether `path` lies in one of the trees."""
        return any(path.is_relative_to(target) for target in self.trees)

    def overlays(self, skeleton: Path) -> tuple[Tree, ...]:
        """The overlays to mount, "/" first and the outer before the inner."""
        inner = (Tree(str(target), tree_name(str(target)), (lower,)) for target, lower in sorted(self.trees.items()))
        return (Tree("/", tree_name("/"), (skeleton,)), *inner)


def tree_name(target: str) -> str:
    """The name of the directory that holds what is written to the tree at `target`: its path with `/` as %2F; `@` for the root."""
    return quote(target.strip("/"), safe="") or "@"


def host_layout(python: PythonHome, *, homes: tuple[Path, ...], root: Path = Path("/")) -> HostLayout:
    """The layout for `python` on this machine, whose directories `homes` (and what contains them) are never shown as a whole.

    `root` is where the system's own directories are looked for.
    """
    layout = HostLayout()
    _add_system(layout, root)
    for prefix in sorted({prefix.resolve() for prefix in python.prefixes}, key=lambda path: len(path.parts)):
        _add_prefix(layout, prefix, homes)
    package = python.package.resolve()
    # A package in a site directory outside of the prefixes (`pip install --user`) has its dependencies beside it.
    beside = package.parent if package.parent.name in ("site-packages", "dist-packages") else package
    if not layout.covers(beside):
        if beside == package:
            layout.package = package
        else:
            layout.trees[beside] = beside
    for path in (*python.prefixes, python.executable, python.package):
        layout.links |= _links_on_the_way(layout, path)
    programs = (str(python.executable.parent), *(str(prefix / "bin") for prefix in python.prefixes))
    layout.path = tuple(dict.fromkeys((*(name for name in programs if name not in SYSTEM_PATH), *SYSTEM_PATH)))
    if python.package.parent in python.import_path or beside != package:
        layout.import_path = (str(python.package.parent),)
    return layout


def _add_system(layout: HostLayout, root: Path) -> None:
    layout.trees[Path("/usr")] = root / "usr"
    for name in UNMERGED:
        path = root / name
        if path.is_symlink():
            layout.links[Path("/") / name] = str(path.readlink())
        elif path.is_dir():
            layout.trees[Path("/") / name] = path


def _add_prefix(layout: HostLayout, prefix: Path, homes: tuple[Path, ...]) -> None:
    for store in WHOLE_STORES:
        if prefix.is_relative_to(store):
            layout.trees[store] = store
    if layout.covers(prefix):
        return
    if not any(home.is_relative_to(prefix) for home in homes):
        layout.trees[prefix] = prefix
        return
    for part in PREFIX_PARTS:
        directory = prefix / part
        if directory.is_dir() and not directory.is_symlink():
            layout.trees[directory] = directory
    if (prefix / "pyvenv.cfg").is_file():
        layout.files.append(prefix / "pyvenv.cfg")


def _links_on_the_way(layout: HostLayout, path: Path) -> dict[Path, str]:
    """The symbolic links outside of the trees that one meets when one follows `path` from the root."""
    links: dict[Path, str] = {}
    pending, here, met = list(path.parts[1:]), Path("/"), 0
    while pending and met < MOST_LINKS:
        part = pending.pop(0)
        here = here.parent if part == ".." else here / part
        if not here.is_symlink():
            continue
        met += 1
        target = here.readlink()
        if not layout.covers(here):
            links[here] = str(target)
        pending = [*(target.parts[1:] if target.is_absolute() else target.parts), *pending]
        here = Path("/") if target.is_absolute() else here.parent
    return links
