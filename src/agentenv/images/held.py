"""Who uses a directory: shared and exclusive locks on the directory itself.

A user of an image or a snapshot layer keeps a shared lock on it as long as it mounts it; who wants to remove it needs the exclusive
one. The kernel drops a lock when its process ends, however it ends, so nothing has to be cleaned up after a crash.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType


@dataclass
class Held:
    """A lock on `directory`; it ends with `release`, with the `with` block, or with the process."""

    directory: Path
    _descriptor: int | None = field(repr=False)

    def release(self) -> None:
        """Gives the lock back; does nothing when it was already given back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Held:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def hold(directory: Path) -> Held | None:
    """Marks `directory` as used until the result is released; None when it does not exist (any more)."""
    return _lock(directory, fcntl.LOCK_SH)


def claim(directory: Path) -> Held | None:
    """The right to change or remove `directory`; None when somebody uses it or it does not exist. Never waits."""
    return _lock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)


def wait_for(directory: Path) -> Held:
    """The exclusive lock on `directory`, which must exist, waiting for whoever has it."""
    held = _lock(directory, fcntl.LOCK_EX)
    if held is None:
        raise FileNotFoundError(f"{directory} was removed while its lock was waited for")
    return held


def _lock(directory: Path, operation: int) -> Held | None:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, operation)
        # The one who had the lock before may have removed or replaced the directory in the meantime.
        if not os.path.samestat(os.fstat(descriptor), directory.stat()):
            raise FileNotFoundError(directory)
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        return None
    return Held(directory, descriptor)
