"""The processes of a sandbox, read from its /proc through the agent: nothing has to be installed in it, and nothing is started for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agentenv.errors import SandboxFileError
from agentenv.sandbox import AsyncSandbox

MOST = 200
"""Processes that are looked at."""
AT_ONCE = 16
PAGE = 4096
TICKS = 100
"""Clock ticks a second in /proc/PID/stat (proc(5): sysconf(_SC_CLK_TCK), which is 100 on every Linux that Debian builds)."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process: processor `seconds` so far, resident `memory` in bytes; `state` is the letter that proc(5) explains."""

    pid: int
    parent: int
    state: str
    seconds: float
    memory: int
    command: str


async def processes(sandbox: AsyncSandbox) -> list[Process]:
    """Those that there are, by their numbers; one that ends meanwhile is left out. Raises `SandboxDied`, `InvalidState`."""
    entries = await sandbox.files.list("/proc")
    pids = sorted(int(entry.name) for entry in entries if entry.name.isdigit())[:MOST]
    room = asyncio.Semaphore(AT_ONCE)

    async def one(pid: int) -> Process | None:
        async with room:
            try:
                stat = await sandbox.files.read(f"/proc/{pid}/stat")
                arguments = await sandbox.files.read(f"/proc/{pid}/cmdline")
            except SandboxFileError:
                return None
        return parse(stat, arguments)

    found = await asyncio.gather(*(one(pid) for pid in pids))
    return [process for process in found if process is not None]


def parse(stat: str, cmdline: str) -> Process | None:
    """A process of its /proc/PID/stat and /proc/PID/cmdline (proc(5)); None for what makes no sense, such as an empty file."""
    pid, _, rest = stat.partition(" (")
    # The name may hold spaces and brackets of its own.
    name, _, fields = rest.rpartition(") ")
    values = fields.split()
    if not pid.isdigit() or len(values) < 22:
        return None
    try:
        seconds = (int(values[11]) + int(values[12])) / TICKS
        command = " ".join(cmdline.split("\0")).strip() or f"[{name}]"
        return Process(int(pid), int(values[1]), values[0], seconds, int(values[21]) * PAGE, command)
    except ValueError:
        return None
