"""`agentenv serve` in a process that is forked with everything loaded, and that may kill itself (SIGKILL) at one exact point."""

from __future__ import annotations

import functools
import importlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Death = tuple[str, str, int, Path]
"""`MODULE:CLASS.METHOD`, `before` or `after`, which call of it, and the file that has to exist for a call to count."""

LOADED = ["agentenv.cli.main", "agentenv.cli.serve", "agentenv.server.serve", "agentenv.server.app", "uvicorn", "aiosqlite"]
"""What all servers have loaded when they are forked: to load it takes longer than all that they do in a test."""


def serve(environment: Mapping[str, str], told: Connection, death: Death | None) -> None:
    """Runs `agentenv serve --json`; what that prints goes to `told`."""
    os.environ.update(environment)
    os.dup2(told.fileno(), 1)
    if death is not None:
        die_at(*death)
    from agentenv.cli.main import app

    app(["serve", "--port", "0", "--json"], prog_name="agentenv")


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
