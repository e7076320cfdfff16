"""Limits that a guest's own kernel holds, set through its agent: how many processors it uses, and how many processes it allows."""

from __future__ import annotations

from typing import TypeVar

from agentenv.guest import Connection, files

Told = TypeVar("Told")

_PIDS = "/sys/fs/cgroup/agentenv"
_ONLINE = "/sys/devices/system/cpu/cpu{}/online"


async def show_processors(agent: Connection, count: int, there: int) -> None:
    """Has the guest use `count` of the `there` that it has; its first one always runs (Documentation/core-api/cpu_hotplug.rst).

    Raises `InfrastructureError`.
    """
    for number in range(1, there):
        await _write(agent, _ONLINE.format(number), "1" if number < max(1, count) else "0")


async def limit_processes(agent: Connection, pids: int) -> None:
    """Lets the guest have so many processes and threads, besides the agent. Raises `InfrastructureError`."""
    await _write(agent, f"{_PIDS}/pids.max", str(pids + 1))


async def process_limit_hits(agent: Connection) -> int:
    """How often the guest refused a fork because of that limit. Raises `InfrastructureError`."""
    events = (await files.read(agent, f"{_PIDS}/pids.events")).decode()
    return int(dict(line.split() for line in events.splitlines()).get("max", 0))


async def _write(agent: Connection, path: str, text: str) -> None:
    await files.write(agent, path, text.encode(), append=True)
