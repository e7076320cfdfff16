"""Moves the threads of a live sandbox to other cores. Which threads are its own is told by their pid namespace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def move_sandbox(pid: int, cores: tuple[int, ...]) -> None:
    """Lets every thread of the sandbox whose first process is `pid` run on `cores` only; what it starts later inherits that.

    Threads that end meanwhile are no error. A thread started by one that was not yet moved is found by looking again.
    """
    moved: set[int] = set()
    _move(pid, cores)  # first: new processes mostly come from the agent
    while found := set(_threads(pid)) - moved:
        for thread in found:
            _move(thread, cores)
        moved |= found


def _move(thread: int, cores: tuple[int, ...]) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except ProcessLookupError:
        return


def _threads(pid: int) -> Iterator[int]:
    """Every thread in the pid namespace of `pid`, as the host numbers them."""
    try:
        wanted = Path(f"/proc/{pid}/ns/pid").readlink()
    except (FileNotFoundError, ProcessLookupError):
        return
    with os.scandir("/proc") as processes:
        candidates = [entry.name for entry in processes if entry.name.isdigit()]
    for candidate in candidates:
        try:
            if Path(f"/proc/{candidate}/ns/pid").readlink() == wanted:
                yield from (int(thread.name) for thread in Path(f"/proc/{candidate}/task").iterdir())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended, or belongs to somebody else
