"""Starts what a template's sandboxes run: a command in the background, and then nothing until it says that it is ready."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from agentenv.errors import CommandError, CommandTimeout, StartupTimeout
from agentenv.node.templates import Startup
from agentenv.sandbox.command_handle import AsyncCommandHandle
from agentenv.sandbox.commands import AsyncCommands
from agentenv.sandbox.results import CommandResult, OutputCallback

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two questions whether it is ready: the second is twice as long as the first, and so on."""


def fitting(startup: Startup, *, users: bool) -> Startup:
    """The startup for a sandbox with or without `users` besides root."""
    return startup if users else msgspec.structs.replace(startup, user=None)


async def run_startup(commands: AsyncCommands, startup: Startup, on_output: OutputCallback | None = None) -> None:
    """Runs `startup.command` in the background of the sandbox of `commands`, and `startup.ready` until it succeeds.

    Raises `StartupTimeout` when that takes too long, `CommandError` when the command fails before it is ready.
    """
    if startup.command is None:
        return
    handle = await commands.run(startup.command, background=True, user=startup.user, cwd=startup.cwd)
    ended = asyncio.create_task(handle.wait(on_stdout=on_output, on_stderr=on_output))
    try:
        async with asyncio.timeout(startup.timeout):
            await _wait_until_ready(commands, startup, ended)
    except TimeoutError as error:
        raise StartupTimeout(
            kind="Template",
            stage="ready command",
            timeout=startup.timeout,
            last_output=_tail(handle),
            parameter="startup.timeout",
        ) from error
    finally:
        ended.cancel()
        with contextlib.suppress(asyncio.CancelledError, CommandTimeout):
            await ended


async def _wait_until_ready(commands: AsyncCommands, startup: Startup, ended: asyncio.Task[CommandResult]) -> None:
    pause = FIRST_PAUSE
    while startup.ready is not None:
        answer = await commands.run(startup.ready, user=startup.user, cwd=startup.cwd)
        if answer.exit_code == 0:
            return
        await asyncio.wait({ended}, timeout=pause)
        _require_well(startup, ended)
        pause = min(2 * pause, LONGEST_PAUSE)
    await asyncio.wait({ended}, timeout=FIRST_PAUSE)
    _require_well(startup, ended)


def _require_well(startup: Startup, ended: asyncio.Task[CommandResult]) -> None:
    """A command that succeeded may have left others running; one that failed will never be ready."""
    if ended.done() and (result := ended.result()).exit_code != 0:
        raise CommandError(startup.command or "", exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr)


def _tail(handle: AsyncCommandHandle) -> str:
    return f"{handle.stdout}{handle.stderr}"
