"""Ctrl-C and SIGTERM ask a training to stop at the next good moment; a second one stops it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Inside its `with`, the first signal only sets `requested` and calls `on_first`; the second raises `KeyboardInterrupt`.

    Outside the main thread, where Python delivers no signals, nothing is installed.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.requested = False
        self._on_first = on_first
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._on_first()
