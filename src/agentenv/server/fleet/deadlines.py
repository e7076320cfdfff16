"""The ends of sandboxes' times, on the monotonic clock. Granting time takes effect at once: who is told so will have it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from agentenv.server.fleet.resident import Resident


class Deadlines:
    """Calls `on_due` when a sandbox's time may be over; that then looks at `overdue`, for the time may have been extended meanwhile."""

    def __init__(self, on_due: Callable[[Resident], None]) -> None:
        self._on_due = on_due

    def grant(self, resident: Resident, seconds: float | None, *, only_more: bool = False) -> None:
        """Its time ends `seconds` from now (None: never); with `only_more`, unless it would end later anyhow."""
        if seconds is None:
            self.stop(resident)
            return
        deadline = time.monotonic() + seconds
        if only_more and resident.deadline is not None and resident.deadline >= deadline:
            return
        resident.deadline = deadline
        self._arm(resident)

    def stop(self, resident: Resident) -> None:
        """No end any more: it is paused, or gone."""
        resident.deadline = None
        if resident.timer is not None:
            resident.timer.cancel()
            resident.timer = None

    def overdue(self, resident: Resident) -> bool:
        """Whether its time is over now."""
        return resident.deadline is not None and resident.deadline <= time.monotonic()

    def _arm(self, resident: Resident) -> None:
        loop = asyncio.get_running_loop()
        if resident.deadline is None:
            return
        delay = max(resident.deadline - time.monotonic(), 0.0)
        # A timer that goes off too early costs one look; setting it anew for each heartbeat costs more.
        if resident.timer is None or resident.timer.when() > loop.time() + delay:
            if resident.timer is not None:
                resident.timer.cancel()
            resident.timer = loop.call_later(delay, self._due, resident)

    def _due(self, resident: Resident) -> None:
        resident.timer = None
        if self.overdue(resident):
            self._on_due(resident)
        else:
            self._arm(resident)
