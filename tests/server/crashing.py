"""`agentenv serve` that kills itself (SIGKILL) at one exact point: run as a script with `MODULE:CLASS.METHOD WHEN NTH ARMED`.

The process dies `before` or `after` the NTH call of that method that is made while the file ARMED exists.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any


def die_at(target: str, when: str, nth: int, armed: Path) -> None:
    """Puts the point of death in its place."""
    module, _, path = target.partition(":")
    owner_name, _, method = path.partition(".")
    owner = getattr(importlib.import_module(module), owner_name)
    original: Callable[..., Awaitable[Any]] = getattr(owner, method)
    calls = 0

    @functools.wraps(original)
    async def mortal(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        counts = os.path.exists(armed)  # noqa: PTH110, ASYNC240 - a test may block its loop
        calls += counts
        last = counts and calls == nth
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = await original(*arguments, **named)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, method, mortal)


if __name__ == "__main__":
    target, when, nth, armed = sys.argv[1:5]
    die_at(target, when, int(nth), Path(armed))
    from agentenv.cli.main import app

    app(["serve", "--port", "0", "--json"], prog_name="agentenv")
