"""Machines that run before anybody asks for them, some for each template that the settings name.

Whoever takes one gets a machine that nobody has used. What the pool cannot make it tries again, ever more seldom, and says so each time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agentenv.errors import AgentEnvError
from agentenv.monitoring.logs import logger
from agentenv.node import NetworkRequest
from agentenv.sandbox import AsyncSandbox

FIRST_RETRY = 1.0
LONGEST_RETRY = 120.0

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Sort:
    """What machines have to agree in to stand for each other: the build, the limits, the network."""

    build: str
    resources: tuple[float | int | None, ...]
    network: NetworkRequest


@dataclass(frozen=True, slots=True)
class Ready:
    """A machine that waits to be taken."""

    sort: Sort
    handle: AsyncSandbox


Make = Callable[[str], Awaitable[Ready]]
"""Makes a machine of the template that a reference means now."""


@dataclass(slots=True, eq=False)
class _Pool:
    reference: str
    size: int
    ready: deque[Ready] = field(default_factory=deque)
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    filler: asyncio.Task[None] | None = None


class Pools:
    """Keeps `sizes[reference]` machines of each template ready, from `start` to `close`."""

    def __init__(self, sizes: dict[str, int], make: Make) -> None:
        self._make = make
        self._pools = [_Pool(reference, size) for reference, size in sizes.items() if size > 0]
        self._closed = asyncio.Event()

    def start(self) -> None:
        """Begins to fill them."""
        for pool in self._pools:
            pool.wanted.set()
            pool.filler = asyncio.create_task(self._fill(pool))

    def ready(self) -> dict[str, int]:
        """How many machines each template has ready."""
        return {pool.reference: len(pool.ready) for pool in self._pools}

    async def take(self, sort: Sort) -> AsyncSandbox | None:
        """A machine of that sort, None when none is ready."""
        for pool in self._pools:
            while pool.ready:
                first = pool.ready[0]
                outdated = first.sort.build != sort.build and first.sort.resources == sort.resources
                if first.sort != sort and not outdated:
                    break
                pool.ready.popleft()
                pool.wanted.set()
                if first.sort == sort and await first.handle.is_running():
                    return first.handle
                await first.handle.kill()
        return None

    async def close(self) -> None:
        """Makes no more and ends those that are ready; idempotent."""
        self._closed.set()
        fillers = [pool.filler for pool in self._pools if pool.filler is not None]
        for filler in fillers:
            filler.cancel()
        await asyncio.gather(*fillers, return_exceptions=True)
        for pool in self._pools:
            while pool.ready:
                await pool.ready.popleft().handle.kill()

    async def _fill(self, pool: _Pool) -> None:
        delay = FIRST_RETRY
        while True:
            await pool.wanted.wait()
            pool.wanted.clear()
            while len(pool.ready) < pool.size:
                try:
                    pool.ready.append(await self._make(pool.reference))
                    delay = FIRST_RETRY
                except AgentEnvError as error:
                    _log.warning("server.pool_not_filled", template=pool.reference, error=str(error), retry_after=delay)
                    await self._wait(delay)
                    delay = min(2 * delay, LONGEST_RETRY)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return
