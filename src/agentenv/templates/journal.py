"""What a build tells while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["debug", "info", "warn", "error"]


@dataclass(frozen=True, slots=True)
class BuildLine:
    """One line: of the build itself, or what a step printed. `step` is the step's name, `time` unix seconds."""

    message: str
    level: Level = "info"
    step: str = ""
    time: float = field(default_factory=time.time)


Log = Callable[[BuildLine], object]
"""Takes each line as it comes."""


class Printed:
    """Turns the pieces of output that a command prints into lines, and keeps the last of them."""

    KEPT = 100

    def __init__(self, log: Log, step: str) -> None:
        self._log = log
        self._step = step
        self._rest = ""
        self._tail: list[str] = []

    def piece(self, text: str) -> None:
        """What was printed next."""
        *lines, self._rest = (self._rest + text).replace("\r\n", "\n").split("\n")
        for line in lines:
            self._line(line)

    def end(self) -> str:
        """All that was begun is told; returns the last lines."""
        if self._rest:
            self._line(self._rest)
            self._rest = ""
        return "\n".join(self._tail)

    def _line(self, line: str) -> None:
        # What a progress bar drew over is not worth a line.
        shown = line.rsplit("\r", 1)[-1].rstrip()
        if shown:
            self._tail = [*self._tail[-self.KEPT + 1 :], shown]
            self._log(BuildLine(shown, step=self._step))
