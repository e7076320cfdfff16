"""Work on a machine that is a little different, without changing this one: its network or its mounts are the work's own.

A thread leaves what it shares with the other threads (unshare(2)) and runs a loop of its own there. What it and its programs change in
that namespace goes with them, whatever becomes of this process.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from agentenv.isolation.conformance import CheckFailed, NotApplicable

NETWORK = 0x40000000  # CLONE_NEWNET, linux/sched.h
MOUNTS = 0x00020000  # CLONE_NEWNS

Work = Callable[[], Coroutine[Any, Any, None]]


async def aside(namespace: int, work: Work) -> None:
    """Runs `work` where `NETWORK` or `MOUNTS` is its own; raises what it raises, and `NotApplicable` without the right to that.

    When this is cancelled, so is the work, and its end is waited for.
    """
    place = _Place(namespace, work)
    running = asyncio.ensure_future(asyncio.to_thread(place.run_in_a_thread_of_its_own))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        place.stop()
        await asyncio.wait({running})
        raise


@dataclass
class _Place:
    namespace: int
    work: Work
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _loop: asyncio.AbstractEventLoop | None = None
    _task: asyncio.Task[None] | None = None
    _stopped: bool = False
    _failures: list[BaseException] = field(default_factory=list)

    def run_in_a_thread_of_its_own(self) -> None:
        # One of a pool would take the next work to the wrong place.
        thread = threading.Thread(target=self._body, name="aside")
        thread.start()
        thread.join()
        if self._failures:
            raise self._failures[0]

    def stop(self) -> None:
        with self._turn:
            self._stopped = True
            if self._loop is not None and self._task is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _body(self) -> None:
        try:
            _leave(self.namespace)
            asyncio.run(self._watched())
        except asyncio.CancelledError:
            self._failures.append(CheckFailed("it was given up."))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for this one
            self._failures.append(error)

    async def _watched(self) -> None:
        with self._turn:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            stopped = self._stopped
        if not stopped:
            await self.work()


def _leave(namespace: int) -> None:
    # `os.unshare` came with Python 3.12.
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(namespace) != 0:
        raise NotApplicable(f"this user may not have a network or mounts of its own: {os.strerror(ctypes.get_errno())}.")
    if namespace == MOUNTS:
        # A new namespace of mounts hands on what is mounted in it where that was so in the old one.
        subprocess.run(["mount", "--make-rprivate", "/"], check=True, capture_output=True)
