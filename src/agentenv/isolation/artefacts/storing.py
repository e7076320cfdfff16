"""Writing of files that several processes may make at the same moment: complete or not there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path


def write_once(path: Path, content: bytes) -> None:
    """Writes `content` to `path` unless there is a file already."""

    def write(partial: Path) -> None:
        partial.write_bytes(content)

    make_once(path, write)


def make_once(path: Path, make: Callable[[Path], None]) -> None:
    """Lets `make` write a file beside `path` and moves it there when it is complete, unless there is one already."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    try:
        make(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
