"""Ends a sandbox that another process owns. It leaves a note in the machine's directory, so that the owner can say how its sandbox died."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

from agentenv.errors import InfrastructureError, NotFound
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.namespace.makers import start_ticks
from agentenv.node.records import SandboxRecord

NOTE = "killed-by"
_GROUP = re.compile(r"/(agentenv-[^/\n]+)$", re.MULTILINE)


async def kill_from_outside(record: SandboxRecord) -> None:
    """Kills the first process of the sandbox and returns when it has ended; its owner frees the rest.

    Raises `NotFound` when it is gone already, `InfrastructureError` when this user may not, or its kind has no process here.
    """
    if record.init is None:
        raise InfrastructureError(f"sandbox {record.id} has no process here to kill.", remedy=f"End its owner, process {record.owner_pid}.")
    pid, started = record.init
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise NotFound(f"sandbox {record.id} is gone already.") from None
    try:
        # The descriptor keeps meaning this process; so its start time is compared once it is open.
        if start_ticks(pid) != started:
            raise NotFound(f"sandbox {record.id} is gone already.")
        with suppress(FileNotFoundError):
            (record.directory / NOTE).write_text(str(os.getpid()))
        await _kill(descriptor, record)
    except PermissionError as error:
        raise InfrastructureError(f"sandbox {record.id} belongs to another user.", remedy="Kill it as that user.") from error
    finally:
        os.close(descriptor)


async def _kill(descriptor: int, record: SandboxRecord) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    group = group_of(record.init[0]) if record.init is not None else None
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if group is not None:
            # A frozen process dies only when it thaws, where the freezer is that of cgroup version 1.
            CgroupTree.discover().open(group).kill()
        await ended.wait()
    except ProcessLookupError:
        return
    finally:
        loop.remove_reader(descriptor)


def group_of(pid: int) -> str | None:
    """The name of the sandbox's cgroup that a process is in."""
    try:
        found = _GROUP.search(Path(f"/proc/{pid}/cgroup").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    return found[1] if found else None


def killed_from_outside(directory: Path) -> str | None:
    """Why the machine in `directory` died, when it was another process of this user that killed it."""
    try:
        return f"it was killed from outside, by process {(directory / NOTE).read_text()}"
    except FileNotFoundError:
        return None
