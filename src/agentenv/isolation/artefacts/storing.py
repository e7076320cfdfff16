"""Files that several processes may make at the same moment: complete or not there, and removed when nobody has used them for long."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

UNUSED = 30 * 86400.0
"""Seconds after its last use from which on such a file is removed; it can be made anew at any time."""


def write_once(path: Path, content: bytes) -> None:
    """Writes `content` to `path` unless there is a file already."""

    def write(partial: Path) -> None:
        partial.write_bytes(content)

    make_once(path, write)


def make_once(path: Path, make: Callable[[Path], None]) -> None:
    """Lets `make` write a file beside `path` and moves it there when it is complete, unless there is one already."""
    if used(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    try:
        make(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def used(path: Path) -> bool:
    """Whether the file is there. That somebody wants it now is noted in its access time, which the kernel often does not keep itself."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    with suppress(PermissionError):  # in a store of another user, who removes there what he likes
        os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
    return True


def remove_unused(directory: Path, seconds: float = UNUSED) -> int:
    """Removes the files of `directory` that nobody has wanted for so long; returns how many bytes of the disk that frees."""
    freed = 0
    with suppress(FileNotFoundError, PermissionError):
        for path in directory.iterdir():
            status = path.lstat()
            if time.time() - status.st_atime > seconds:
                path.unlink()
                freed += status.st_blocks * 512
    return freed
