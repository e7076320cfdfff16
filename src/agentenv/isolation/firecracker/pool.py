"""A few Firecracker processes that are ready before a machine asks for one. Each is used once and never handed on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from agentenv.errors import InfrastructureError, InvalidState
from agentenv.isolation.firecracker.launcher import Vmm
from agentenv.monitoring.logs import logger

FIRST_RETRY = 0.5
LONGEST_RETRY = 60.0
_log = logger(__name__)


class Pool:
    """Keeps as many processes of `launch` ready as are asked for at a time: at least `least`, at most `most`. An idle one takes 3 MiB."""

    def __init__(self, launch: Callable[[], Awaitable[Vmm]], least: int, most: int) -> None:
        self._launch = launch
        self._least = least
        self._most = most
        self._size = least
        self._taken = 0
        self._ready: deque[Vmm] = deque()
        self._wanted = asyncio.Event()
        self._full = asyncio.Event()
        self._filler: asyncio.Task[None] | None = None
        self._closed = False

    async def take(self) -> Vmm:
        """One that is ready, else one that is started now. Raises `InfrastructureError`, `InvalidState` when the pool is closed."""
        if self._closed:
            raise InvalidState("this backend is closed.")
        self._taken += 1
        found = None
        while self._ready and found is None:
            candidate = self._ready.popleft()
            if candidate.monitor.ended is None:
                found = candidate
            else:
                await candidate.end()
        return found or await self._launch()

    def refill(self) -> None:
        """Begins to replace what was taken: not before those who took it are served, since that takes processors from them.

        A group that is forked once is likely to be forked again. What is not asked for any more is halved with each refill.
        """
        if self._closed:
            return
        self._size = max(self._least, min(self._taken, self._most), self._size // 2)
        self._taken = 0
        self._full.clear()
        self._wanted.set()
        if self._filler is None:
            self._filler = asyncio.create_task(self._fill(), name="firecracker pool")

    async def full(self) -> None:
        """Returns when what was taken has been replaced. Without any `refill` yet it begins with that."""
        if self._filler is None:
            self.refill()
        await self._full.wait()

    async def close(self) -> None:
        """Ends those that nobody has taken. Idempotent."""
        self._closed = True
        if self._filler is not None:
            self._filler.cancel()
            await asyncio.wait([self._filler])
        while self._ready:
            await self._ready.popleft().end()

    async def _fill(self) -> None:
        """A failure is told, and tried again after a pause that doubles up to a minute."""
        pause = FIRST_RETRY
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while len(self._ready) > self._size:
                    await self._ready.pop().end()
                while len(self._ready) < self._size:
                    self._ready.append(await self._launch())
                pause = FIRST_RETRY
                self._full.set()
            except InfrastructureError as error:
                _log.warning("firecracker.refill_failed", error=str(error), retry_seconds=pause)
                await asyncio.sleep(pause)
                pause = min(LONGEST_RETRY, pause * 2)
                self._wanted.set()
