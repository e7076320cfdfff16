"""One start of a machine under way: which stage runs since when, and what the stages before took."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter

from agentenv.errors import Stage, StartupTimeout


class Attempt:
    """Made when the start begins, in the stage "prepare". `printed` gives what the machine has printed, once there is one.

    `kind` is what an error calls the machine.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.stage = "prepare"
        self.stages: list[Stage] = []
        self.printed: Callable[[], str] = str
        self._since = perf_counter()

    def enter(self, stage: str) -> None:
        """The stage before is over, and `stage` begins."""
        now = perf_counter()
        self.stages.append(Stage(self.stage, now - self._since))
        self.stage, self._since = stage, now

    def finish(self) -> tuple[Stage, ...]:
        """All stages."""
        self.enter("")
        return tuple(self.stages)

    @asynccontextmanager
    async def within(self, allowed: float) -> AsyncIterator[None]:
        """Raises `StartupTimeout` with all that is known when the body takes more than `allowed` seconds."""
        try:
            async with asyncio.timeout(allowed) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise StartupTimeout(
                kind=self.kind, stage=self.stage, timeout=allowed, timings=tuple(self.stages), last_output=self.printed()
            ) from error
