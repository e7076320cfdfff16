"""Processes of a machine that no cgroup holds together: all of gVisor's name the directory in which runsc keeps what it knows of it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def end_strays(state: Path) -> None:
    """Kills those of them that this user may kill, and returns when no more are found. Blocks for some milliseconds."""
    while found := _processes(f"--root={state}".encode()):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _processes(word: bytes) -> list[int]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            words = (directory / "cmdline").read_bytes().split(b"\0")
            if word in words and directory.stat().st_uid == os.geteuid():
                found.append(int(directory.name))
    return found
