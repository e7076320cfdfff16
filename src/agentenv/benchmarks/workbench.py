"""Where a benchmark drives a backend without a node around it: a directory, and a loop that runs one coroutine at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Workbench:
    """`directory` stands for an owner's. What a backend needs besides is in the sub-class."""

    directory: Path
    loop: asyncio.AbstractEventLoop
    _numbers: itertools.count[int] = field(default_factory=itertools.count, init=False)

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs one coroutine to its end."""
        return self.loop.run_until_complete(work)

    def new(self, name: str) -> Path:
        """A new directory."""
        directory = self.directory / f"{name}{next(self._numbers)}"
        directory.mkdir()
        return directory
