"""The end of a sandbox's time, kept on the monotonic clock, so that setting the wall clock ends no sandbox too early."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from agentenv.errors import InvalidState


def check_lifetime(seconds: float | None) -> None:
    """Raises `InvalidState` for what is no lifetime."""
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise InvalidState(f"a lifetime of {seconds!r} seconds makes no sense.", remedy="Give a number above 0, or None for no end.")


LEAST = 0.001


class Lifetime:
    """Calls `on_end` with the seconds granted, once they are over. Belongs to the running event loop."""

    def __init__(self, on_end: Callable[[float], None]) -> None:
        self._on_end = on_end
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0
        self.expires: float | None = None
        """When it ends, in unix seconds, for showing only."""

    def set(self, seconds: float | None) -> None:
        """Grants `seconds` from now instead of what was granted before; None is without end.

        Takes effect at once or not at all: once the end has come, the owner of this object is ending already.
        """
        check_lifetime(seconds)
        self.cancel()
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_end, seconds)
            self._until = time.monotonic() + seconds
            self.expires = time.time() + seconds

    @property
    def left(self) -> float | None:
        """The seconds until the end, a little at least; None where there is none."""
        return None if self._timer is None else max(LEAST, self._until - time.monotonic())

    def cancel(self) -> None:
        """No end any more; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.expires = None, None
