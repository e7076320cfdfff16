"""The end of a server: its running sandboxes are waited for, paused so that the next server can resume them, or ended."""

from __future__ import annotations

import asyncio
from typing import Literal

from agentenv.errors import AgentEnvError
from agentenv.monitoring.logs import logger
from agentenv.server.fleet.changes import Changes
from agentenv.server.fleet.records import State
from agentenv.server.fleet.register import Register
from agentenv.server.fleet.resident import Resident

LeavingPolicy = Literal["drain", "persist", "kill"]

_log = logger(__name__)


async def leave(changes: Changes, policy: LeavingPolicy, grace: float, *, at_once: int) -> None:
    """Brings every running sandbox to where it can be left, `at_once` of them at a time; `drain` waits `grace` seconds before."""
    if policy == "drain":
        await _drained(changes.register, grace)
    running = [resident for resident in changes.register if resident.state is not State.PAUSED]
    if policy == "kill":
        await asyncio.gather(*(changes.end(resident, "the server ended", "server") for resident in running))
    else:
        turns = asyncio.Semaphore(at_once)
        await asyncio.gather(*(_persist(changes, resident, turns) for resident in running))


async def _drained(register: Register, grace: float) -> None:
    try:
        async with asyncio.timeout(grace):
            while waiting := [one.watch for one in register if one.state is not State.PAUSED and one.watch is not None]:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        return


async def _persist(changes: Changes, resident: Resident, turns: asyncio.Semaphore) -> None:
    async with turns, resident.lock:
        if resident.state is State.RUNNING:
            try:
                await changes.pause(resident, "the server ends")
            except AgentEnvError as error:
                _log.error("server.not_persisted", sandbox=resident.id, error=str(error))
