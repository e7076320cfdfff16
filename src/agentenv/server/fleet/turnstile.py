"""The queue before a start: so many at once, the others in turn, tenant by tenant, so that nobody's thousand keeps out another's one."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agentenv.errors import QuotaExceeded

_SMOOTHING = 0.1
"""How much the latest start counts in the mean from which a waiting time is estimated."""


@dataclass(slots=True, order=True)
class _Waiting:
    urgency: tuple[int, int]
    turn: asyncio.Future[None] = field(compare=False)


class Turnstile:
    """Lets `width` through at once and at most `depth` wait, each no longer than `patience` seconds.

    Of those who wait, the tenant with the fewest inside is next (of several, who was let in longest ago); of its own, the highest priority,
    then who came first.
    """

    def __init__(self, width: int, depth: int, patience: float) -> None:
        self._width = width
        self._depth = depth
        self._patience = patience
        self._inside: dict[str, int] = {}
        self._waiting: dict[str, list[_Waiting]] = {}
        self._last: dict[str, int] = {}
        self._numbers = itertools.count()
        self._mean = 0.05

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def inside(self) -> int:
        """How many are inside."""
        return sum(self._inside.values())

    @asynccontextmanager
    async def turn(self, tenant: str, priority: int = 0) -> AsyncIterator[None]:
        """Waits for a turn and holds it within the block. Raises `QuotaExceeded` when too many wait, or for too long."""
        await self._enter(tenant, priority)
        began = time.monotonic()
        try:
            yield
        finally:
            self._mean += _SMOOTHING * (time.monotonic() - began - self._mean)
            self._leave(tenant)

    async def _enter(self, tenant: str, priority: int) -> None:
        if self.inside < self._width and not self._waiting:
            self._let_in(tenant)
            return
        if self.waiting >= self._depth:
            raise self._refusal(f"{self.waiting} starts wait already")
        waiting = _Waiting((-priority, next(self._numbers)), asyncio.get_running_loop().create_future())
        heapq.heappush(self._waiting.setdefault(tenant, []), waiting)
        try:
            async with asyncio.timeout(self._patience):
                await waiting.turn
        except BaseException as error:
            if waiting.turn.done() and not waiting.turn.cancelled():
                self._leave(tenant)
            else:
                self._withdraw(tenant, waiting)
            if isinstance(error, TimeoutError):
                raise self._refusal(f"no turn came in {self._patience:g} s") from None
            raise

    def _let_in(self, tenant: str) -> None:
        self._inside[tenant] = self._inside.get(tenant, 0) + 1
        self._last[tenant] = next(self._numbers)

    def _leave(self, tenant: str) -> None:
        self._inside[tenant] -= 1
        if not self._inside[tenant]:
            del self._inside[tenant]
        while self._waiting and self.inside < self._width:
            following = min(self._waiting, key=lambda name: (self._inside.get(name, 0), self._last.get(name, -1)))
            first = heapq.heappop(self._waiting[following])
            self._tidy(following)
            if not first.turn.done():
                self._let_in(following)
                first.turn.set_result(None)
        self._last = {name: number for name, number in self._last.items() if name in self._inside or name in self._waiting}

    def _withdraw(self, tenant: str, waiting: _Waiting) -> None:
        queue = self._waiting.get(tenant, [])
        if waiting in queue:
            queue.remove(waiting)
            heapq.heapify(queue)
        self._tidy(tenant)

    def _tidy(self, tenant: str) -> None:
        if not self._waiting.get(tenant, True):
            del self._waiting[tenant]

    def _refusal(self, why: str) -> QuotaExceeded:
        seconds = math.ceil(self._mean * (self.waiting + 1) / self._width)
        return QuotaExceeded(
            f"the server starts as many sandboxes as it can: {why}.", retry_after=min(max(seconds, 1), 60), remedy="Try again later."
        )
