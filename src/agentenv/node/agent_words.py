"""What the node itself says to a sandbox's agent (docs/agent-protocol.md): around a snapshot, and to a machine that goes on from one."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from agentenv.isolation.contract import Machine
from agentenv.isolation.namespace.agent_call import call

ANSWER_SECONDS = 10.0
FREEZE_SECONDS = 120.0
"""Of the guest's own time, which stands still while its memory is written: only a copy that nobody speaks to comes to their end."""


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
    """The machine has a clock of its own, which stood still while it was paused."""

    def say() -> None:
        with machine.dial() as connection:
            call(connection, "configure", timeout=ANSWER_SECONDS, realtime_ns=time.time_ns())

    await asyncio.to_thread(say)


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

    Without `machine_id` the one that it finds in its files stays. Without `hooks` those do not run, as nothing of its image does yet.
    """

    def say() -> None:
        with machine.dial() as connection:
            # The time is read last: to reach the agent of a machine that has just begun to go on can take a while.
            call(
                connection,
                "restored",
                timeout=timeout,
                entropy=os.urandom(64),
                hostname=hostname,
                machine_id=machine_id,
                hooks=hooks,
                realtime_ns=time.time_ns(),
            )

    await asyncio.to_thread(say)
