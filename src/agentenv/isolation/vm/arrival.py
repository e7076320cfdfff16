"""Waiting until a file has come into a directory: a monitor's socket, which it makes when it is ready."""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path

_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80  # linux/inotify.h
_EVENTS = 4096


async def arrival(path: Path) -> None:
    """Returns when there is a file at `path`, whose directory exists. Raises OSError where that cannot be watched."""
    loop = asyncio.get_running_loop()
    watch = _watch(path.parent)
    changed = asyncio.Event()

    def look() -> None:
        os.read(watch, _EVENTS)
        changed.set()

    loop.add_reader(watch, look)
    try:
        while not _exists(path):
            await changed.wait()
            changed.clear()
    finally:
        loop.remove_reader(watch)
        os.close(watch)


def _exists(path: Path) -> bool:
    return path.exists()


def _watch(directory: Path) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    watch: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if watch < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if libc.inotify_add_watch(watch, os.fsencode(directory), _IN_CREATE | _IN_MOVED_TO) < 0:
        number = ctypes.get_errno()
        os.close(watch)
        raise OSError(number, os.strerror(number), os.fspath(directory))
    return watch
