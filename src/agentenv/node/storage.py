"""Holds sandboxes to their storage limit by watching: no quota of the kernel's is to be had everywhere, least of all without root.

An idle watch costs one `statvfs` per disk: if not one block was taken or given back, no sandbox on it has written. If the disk's free
space sank by as much as a sandbox may still use, its files are added up at once; smaller changes are looked into at leisure, so that
what others free cannot hide what it writes. `docs/resources.md` says how far a fast writer can get before it is seen.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.images.files import allocated_bytes
from agentenv.node import disk_usage
from agentenv.node.disk_usage import Writer, check_free

__all__ = ["StorageExcess", "StorageWatch", "Writer", "check_free"]

FASTEST = 0.05
SLOWEST = 0.5
"""Seconds between two looks: the first when a limit may soon be reached, the second when nothing happens."""
QUICK_DISK = 1e9
"""Bytes a second that a sandbox is expected to write at most: what it may still write, at that rate, bounds the time to the next look."""

_LEISURE = 2.0
_URGENT_FACTOR = 10
_LEISURE_FACTOR = 50
"""Adding files up that took t seconds is repeated after 10 t at the earliest when urgent, and after 50 times what all take together,
but no sooner than two seconds, when not: so watching costs a bounded share of the machine however many files there are."""
_WALKERS = 4

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class StorageExcess:
    """A sandbox's files take more than its limit (bytes); `writers` are the processes that wrote since the last look, the biggest first."""

    id: str
    limit: int
    used: int
    writers: tuple[Writer, ...]


OnFull = Callable[[StorageExcess], None]


@dataclass(slots=True, eq=False)
class _Watched:
    """One sandbox. Its files were last added up at `looked_at`, in `took` seconds; `touched` says that its disk has changed since."""

    id: str
    directory: Path
    limit: int
    on_full: OnFull
    pids: Callable[[], Iterable[int]]
    disk: _Disk
    used: int = 0
    used_before: int = 0
    free_then: int = 0
    written: dict[int, int] = field(default_factory=dict)
    looked_at: float = _NEVER
    took: float = 0.0
    touched: bool = True
    reported: int | None = None


@dataclass(slots=True, eq=False)
class _Disk:
    """One file system, held by the descriptor of a directory on it: free blocks and inodes when last seen, bytes a second that go."""

    directory: int
    exact: bool
    state: tuple[int, int] | None = None
    free: int = 0
    seen_at: float = _NEVER
    rate: float = 0.0

    def look(self) -> bool:
        """Reads the free space anew; True when anything may have been written or removed since the last time."""
        status, now = os.statvfs(self.directory), time.monotonic()
        state, free = (status.f_bfree, status.f_ffree), status.f_bfree * status.f_frsize
        changed = state != self.state or not self.exact
        if now > self.seen_at > _NEVER:
            self.rate = max(0.0, (self.free - free) / (now - self.seen_at))
        self.state, self.free, self.seen_at = state, free, now
        return changed


class StorageWatch:
    """The storage limits of one node's sandboxes. Belongs to one event loop; files are added up in threads of its own."""

    def __init__(self) -> None:
        self.walks = 0
        self._watched: dict[str, _Watched] = {}
        self._disks: dict[int, _Disk] = {}
        self._walking: dict[_Watched, asyncio.Task[None]] = {}
        self._walkers = ThreadPoolExecutor(_WALKERS, thread_name_prefix="agentenv-storage")
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, id: str, directory: Path, limit: int, on_full: OnFull, pids: Callable[[], Iterable[int]] = tuple) -> None:
        """Watches what lies below `directory`, which must exist, on one disk. `pids` tells the sandbox's processes.

        `on_full` is called in the event loop when the limit (bytes) is exceeded, and again each time that the excess has grown;
        once files were removed, all is well again. It must end or freeze the writer: the watch itself touches nothing.
        """
        device = directory.stat().st_dev
        disk = self._disks.get(device)
        if disk is None:
            descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            disk = self._disks[device] = _Disk(descriptor, disk_usage.tells_at_once(directory))
        self._watched[id] = _Watched(id, directory, limit, on_full, pids, disk)
        self._changed.set()

    def set_limit(self, id: str, limit: int) -> None:
        """Changes the limit (bytes) of a watched sandbox; `KeyError` when it is not."""
        watched = self._watched[id]
        watched.limit, watched.touched, watched.looked_at = limit, True, _NEVER
        self._changed.set()

    def remove(self, id: str) -> None:
        """Ends a watch; does nothing where there is none."""
        self._watched.pop(id, None)
        used = {watched.disk for watched in self._watched.values()}
        for device, disk in list(self._disks.items()):
            if disk not in used:
                os.close(self._disks.pop(device).directory)

    async def used(self, id: str) -> int:
        """Bytes that the sandbox's files take now, freshly added up; `KeyError` when it is not watched."""
        watched = self._watched[id]
        await self._measure(watched)
        return watched.used

    def start(self) -> None:
        """Looks again and again, until `close`; does nothing the second time."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="storage watch")

    async def close(self) -> None:
        """Ends all watches; idempotent."""
        for id in list(self._watched):
            self.remove(id)
        tasks = [*self._walking.values(), *((self._task,) if self._task else ())]
        self._task = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._walkers.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            pause = self.look() if self._watched else None
            try:
                await asyncio.wait_for(self._changed.wait(), pause)
            except TimeoutError:
                continue

    def look(self) -> float:
        """One look at every disk; begins to add up the files of whoever may be over. Returns the seconds after which the next is due."""
        pause = SLOWEST
        changed = {disk for disk in self._disks.values() if disk.look()}
        now = time.monotonic()
        leisure = max(_LEISURE, _LEISURE_FACTOR * sum(watched.took for watched in self._watched.values()))
        for watched in self._watched.values():
            watched.touched |= watched.disk in changed
            if watched.touched and watched not in self._walking and _is_due(watched, now, leisure):
                task = asyncio.create_task(self._walk(watched))
                self._walking[watched] = task
                task.add_done_callback(lambda _, watched=watched: self._walking.pop(watched))  # type: ignore[misc]
            rate = max(QUICK_DISK, 2 * watched.disk.rate)
            pause = min(pause, max(FASTEST, (watched.limit - watched.used) / rate))
        return pause

    async def settled(self) -> None:
        """Returns when every look that has begun is done."""
        if self._walking:
            await asyncio.wait(self._walking.values())

    async def _walk(self, watched: _Watched) -> None:
        await self._measure(watched)
        if self._watched.get(watched.id) is watched:
            self._judge(watched)

    async def _measure(self, watched: _Watched) -> None:
        begun, free = time.monotonic(), watched.disk.free
        watched.touched = False
        self.walks += 1
        loop = asyncio.get_running_loop()
        watched.used_before = watched.used
        watched.used = await loop.run_in_executor(self._walkers, _add_up, watched.directory, tuple(watched.pids()))
        watched.free_then = free
        watched.looked_at = time.monotonic()
        watched.took = watched.looked_at - begun

    def _judge(self, watched: _Watched) -> None:
        """Reports an excess that is new or has grown, and forgets it when there is none."""
        counts = disk_usage.written(watched.pids())
        before, grown = watched.written, watched.used - watched.used_before
        watched.written = counts
        if watched.used <= watched.limit:
            watched.reported = None
        elif watched.reported is None or watched.used > watched.reported:
            watched.reported = watched.used
            found = disk_usage.writers(before, counts, grown)
            watched.on_full(StorageExcess(watched.id, watched.limit, watched.used, found))


def _is_due(watched: _Watched, now: float, leisure: float) -> bool:
    """Whether its files are to be added up: at once if the disk lost as much as it had left, after `leisure` seconds otherwise."""
    since = now - watched.looked_at
    if watched.free_then - watched.disk.free >= watched.limit - watched.used:
        return since >= watched.took * _URGENT_FACTOR
    return since >= leisure


def _add_up(directory: Path, pids: tuple[int, ...]) -> int:
    return allocated_bytes(directory) + disk_usage.unlinked(pids)
