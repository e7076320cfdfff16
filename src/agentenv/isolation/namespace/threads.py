"""Looks at and steers the threads of a live sandbox from outside. Which are its own is told by their pid namespace."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from agentenv.errors import InfrastructureError

_STOPPED = frozenset("TtDZX")
"""States of proc(5) in which a thread that was sent SIGSTOP runs no more of its program. D may last: a vfork whose child is stopped."""

_LOOK_AGAIN_SECONDS = 0.0005


def move_sandbox(pid: int, cores: tuple[int, ...]) -> None:
    """Lets every thread of the sandbox whose first process is `pid` run on `cores` only; what it starts later inherits that.

    Threads that end meanwhile are no error. A thread started by one that was not yet moved is found by looking again.
    """
    moved: set[int] = set()
    _move(pid, cores)  # first: new processes mostly come from the agent
    while found := set(threads(pid)) - moved:
        for thread in found:
            _move(thread, cores)
        moved |= found


def wait_until_stopped(pid: int, timeout: float) -> None:
    """Returns when every process of the sandbox but its first, `pid`, has come to the stop that it was sent.

    One that runs on another processor does so within microseconds. Raises `InfrastructureError` after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while running := [thread for thread in threads(pid) if thread != pid and _state(thread) not in _STOPPED]:
        if time.monotonic() > deadline:
            raise InfrastructureError(f"process {running[0]} of the sandbox has not stopped after {timeout:g} s.")
        time.sleep(_LOOK_AGAIN_SECONDS)  # the kernel tells a stop to nobody but the parent, which is in the sandbox


def threads(pid: int) -> Iterator[int]:
    """Every thread in the pid namespace of `pid`, as the host numbers them."""
    for process in members(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield from (int(thread.name) for thread in Path(f"/proc/{process}/task").iterdir())


def members(pid: int) -> Iterator[int]:
    """Every process in the pid namespace of `pid`, as the host numbers them."""
    try:
        wanted = Path(f"/proc/{pid}/ns/pid").readlink()
    except (FileNotFoundError, ProcessLookupError):
        return
    with os.scandir("/proc") as processes:
        candidates = [int(entry.name) for entry in processes if entry.name.isdigit()]
    for candidate in candidates:
        # It may have ended, or belong to somebody else.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if Path(f"/proc/{candidate}/ns/pid").readlink() == wanted:
                yield candidate


def _state(thread: int) -> str:
    try:
        return Path(f"/proc/{thread}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _move(thread: int, cores: tuple[int, ...]) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except ProcessLookupError:
        return
