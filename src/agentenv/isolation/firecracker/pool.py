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
    """Keeps up to `size` processes of `launch` ready. An idle one takes 2 MiB."""

    def __init__(self, launch: Callable[[], Awaitable[Vmm]], size: int) -> None:
        self._launch = launch
        self._size = size
        self._ready: deque[Vmm] = deque()
        self._wanted = asyncio.Event()
        self._filler: asyncio.Task[None] | None = None
        self._closed = False

    async def take(self) -> Vmm:
        """One that is ready, else one that is started now. Raises `InfrastructureError`, `InvalidState` when the pool is closed."""
        if self._closed:
            raise InvalidState("this backend is closed.")
        found = None
        while self._ready and found is None:
            candidate = self._ready.popleft()
            if candidate.monitor.ended is None:
                found = candidate
            else:
                await candidate.end()
        return found or await self._launch()

    def refill(self) -> None:
        """Begins to replace what was taken: not before those who took it are served, since that takes processors from them."""
        if self._closed:
            return
        if self._filler is None:
            self._filler = asyncio.create_task(self._fill(), name="firecracker pool")
        self._wanted.set()

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
                while len(self._ready) < self._size:
                    self._ready.append(await self._launch())
                pause = FIRST_RETRY
            except InfrastructureError as error:
                _log.warning("firecracker.refill_failed", error=str(error), retry_seconds=pause)
                await asyncio.sleep(pause)
                pause = min(LONGEST_RETRY, pause * 2)
                self._wanted.set()
