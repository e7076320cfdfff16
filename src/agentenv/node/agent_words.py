"""What the node itself says to a sandbox's agent (docs/agent-protocol.md): around a snapshot, and to a machine that goes on from one."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Any

from agentenv.isolation.contract import Machine
from agentenv.isolation.namespace.agent_call import ask, call

ANSWER_SECONDS = 10.0
FREEZE_SECONDS = 120.0
"""Of the guest's own time, which stands still while its memory is written: only a copy that nobody speaks to comes to their end."""

_EXACT = 0.02
"""Seconds that the telling of the time may take."""
_TELLINGS = 8


async def tell(machine: Machine, operation: str, *, timeout: float = ANSWER_SECONDS, **parameters: Any) -> dict[str, Any]:
    """Has the agent do `operation` and returns its result; `timeout` in seconds. Raises `InfrastructureError`, `SandboxDied`."""

    def ask() -> dict[str, Any]:
        return call(machine.dial(), operation, timeout=timeout, **parameters)

    return await asyncio.to_thread(ask)


async def freeze(machine: Machine, *, disk: bool) -> None:
    """A snapshot is about to be taken; with `disk` what was written so far is on it, and nothing more is written until `thaw`."""
    await tell(machine, "freeze", disk=disk, seconds=FREEZE_SECONDS)


async def thaw(machine: Machine) -> None:
    """The snapshot has been taken."""
    await tell(machine, "thaw")


async def tell_time(machine: Machine) -> None:
    """The machine has a clock of its own, which stood still while it was paused: it is right within a few hundredths of a second then."""

    def say() -> None:
        with machine.dial() as connection:
            _tell_time(connection, 1)

    await asyncio.to_thread(say)


def _tell_time(connection: socket.socket, number: int) -> None:
    """Tells it again while the answer takes so long that the clock may be wrong by too much: by no more than that (Cristian's algorithm).

    `number` is that of the connection's next operation.
    """
    for later in range(_TELLINGS):
        since = time.monotonic()
        ask(connection, "configure", number=number + later, timeout=ANSWER_SECONDS, realtime_ns=time.time_ns())
        if time.monotonic() - since <= _EXACT:
            return


async def tell_nameservers(machine: Machine, configuration: str) -> None:
    """The machine has a network from now on, and asks for names as `configuration`, its new /etc/resolv.conf, says.

    What was there is replaced, also where it is a link to what a resolver of the image's would write.
    """

    def say() -> None:
        path = "/etc/resolv.conf"
        call(machine.dial(), "remove", timeout=ANSWER_SECONDS, path=path, missing_ok=True)
        call(machine.dial(), "write", timeout=ANSWER_SECONDS, path=path, mode=0o644, parents=True, content=configuration.encode())

    await asyncio.to_thread(say)


async def restored(machine: Machine, hostname: str, machine_id: str | None, *, timeout: float, hooks: bool = True) -> None:
    """The machine goes on from another's memory: it gets new random numbers, the time, a name of its own, and runs its image's hooks.

    Without `machine_id`, for a machine without a clock and a disk of its own, the one that it finds in its files stays. Without `hooks`
    those do not run, as nothing of its image does yet.
    """

    def say() -> None:
        with machine.dial() as connection:
            # The time is read last: to reach the agent of a machine that has just begun to go on can take a while.
            since = time.monotonic()
            ask(
                connection,
                "restored",
                number=1,
                timeout=timeout,
                entropy=os.urandom(64),
                hostname=hostname,
                machine_id=machine_id,
                hooks=hooks,
                realtime_ns=time.time_ns(),
            )
            if machine_id is not None and time.monotonic() - since > _EXACT:
                _tell_time(connection, 2)

    await asyncio.to_thread(say)
