"""Work done inside another network namespace, without leaving one's own."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

CLONE_NEWNET = 0x40000000  # linux/sched.h

Result = TypeVar("Result")


def inside(netns: Path, work: Callable[[], Result]) -> Result:
    """What `work` returns or raises, called by a thread of its own that has entered `netns` (a path such as /run/netns/NAME).

    The thread ends with it, so that none that has been elsewhere is used again. Sockets and descriptors of devices that `work` opens
    belong to `netns` for good, and programs that it starts run there. Blocks; needs root. Raises `OSError` for what is no namespace.
    """
    results: list[Result] = []
    failures: list[BaseException] = []

    def body() -> None:
        try:
            _enter(netns)
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by who waits for this thread
            failures.append(error)

    thread = threading.Thread(target=body, name=f"in {netns.name}")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def _enter(netns: Path) -> None:
    descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # `os.setns` came with Python 3.12.
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(netns))
    finally:
        os.close(descriptor)
