"""Removes the empty cgroups of processes that are gone, whatever AGENTENV_HOME they had."""

from __future__ import annotations

import os
from collections.abc import Iterator

from agentenv.isolation.namespace import cgroup_files as files
from agentenv.isolation.namespace.cgroups import CgroupTree, maker_of
from agentenv.isolation.namespace.makers import Maker


def remove_deserted(tree: CgroupTree) -> list[str]:
    """Removes them and returns their names.

    One with a process in it stays, and so does one whose maker may still live: in another container, or of an AgentENV that did not write
    its makers down. Nothing is killed, since the kernel itself refuses to remove a cgroup with a process in it.
    """
    gone: dict[Maker, bool] = {}
    removed = []
    for name in tree.names():
        maker = maker_of(name)
        if maker is None or not (gone[maker] if maker in gone else gone.setdefault(maker, maker.is_gone())):
            continue
        directories = [f"{hierarchy.base}/{name}" for hierarchy in tree.hierarchies]
        if not any(_has_processes(directory) for directory in directories) and all(_remove(directory) for directory in directories):
            removed.append(name)
    return removed


def _tree(directory: str) -> Iterator[str]:
    """The group and all below it, the deepest first."""
    return (path for path, _, _ in os.walk(directory, topdown=False))


def _has_processes(directory: str) -> bool:
    return any(files.read_processes(f"{group}/cgroup.procs") for group in _tree(directory))


def _remove(directory: str) -> bool:
    """Whether it is gone; False where it may not be removed, or somebody has entered it meanwhile."""
    try:
        for group in _tree(directory):
            os.rmdir(group)  # noqa: PTH106 - a plain string is what we have
    except FileNotFoundError:
        return True  # somebody else was quicker
    except OSError:
        return False
    return True
