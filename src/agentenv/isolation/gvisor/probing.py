"""Finds out whether gVisor works on this machine by doing it: a sandbox of nothing but the agent starts, and goes on from a checkpoint.

That takes a second, so a success is written down, for this runsc on this kernel. A failure is tried again each time: it may be mended.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from agentenv.errors import AgentEnvError
from agentenv.isolation.contract import (
    Backend,
    Capabilities,
    Checkpointing,
    MachineSpec,
    Probe,
    Resources,
    Restoring,
    RootFilesystem,
    Tree,
)
from agentenv.isolation.gvisor.runsc import Runsc
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.paths import state_home

NAME = "gvisor"


_DISK_UNLIMITED = "disk: version 1 of cgroups cannot limit what gVisor writes, all of which waits in the page cache of the machine."
_SLOW_NETWORK = "network: its packets take a way through the agent, which costs more than a stack of the host's."
_NO_USERS = "users: root is the only one, since to the host all of a sandbox is you."
_NO_NETWORK = "network: a sandbox has a loopback only, since only root can connect it; ports still work through the agent."


class Trial(Backend, Restoring, Protocol):
    """The backend as it is tried out."""


def probe(directory: Path, runsc: Runsc, cgroups: CgroupTree, make: Callable[[Path, Runsc], Trial]) -> Probe:
    """Tries it in a temporary directory below `directory`, unless that has succeeded before; says what is weaker than it could be."""
    note = _note(runsc)
    if not note.exists():
        try:
            # A thread of its own, since the caller may be inside an event loop.
            with ThreadPoolExecutor(1, thread_name_prefix="agentenv-probe") as thread:
                thread.submit(asyncio.run, _try(directory, runsc, make)).result()
        except (AgentEnvError, OSError) as error:
            remedy = getattr(error, "remedy", None) or "Use another backend; `agentenv doctor` shows which there are."
            return Probe(NAME, usable=False, version=runsc.version, reason=getattr(error, "message", str(error)), remedy=remedy)
        with suppress(OSError):  # then it is tried again next time
            note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            note.touch()
    return Probe(NAME, usable=True, version=runsc.version, capabilities=capabilities(cgroups))


def _note(runsc: Runsc) -> Path:
    status = runsc.path.stat()
    told = f"{runsc.path} {status.st_size} {status.st_mtime_ns} {platform.release()} {platform.version()} {os.geteuid()}"
    return state_home() / "probes" / f"gvisor-{hashlib.sha256(told.encode()).hexdigest()[:16]}"


async def _try(directory: Path, runsc: Runsc, make: Callable[[Path, Runsc], Trial]) -> None:
    with tempfile.TemporaryDirectory(prefix="probe", dir=directory) as scratch:
        nothing = Path(scratch) / "nothing"
        nothing.mkdir()
        backend = make(Path(scratch), runsc)
        try:
            first = await backend.start(_spec(Path(scratch), "first", nothing))
            assert isinstance(first, Checkpointing)
            await first.pause()
            checkpoint = Path(scratch) / "checkpoint"
            checkpoint.mkdir()
            await first.checkpoint(checkpoint)
            await first.kill()
            await backend.restore(_spec(Path(scratch), "second", nothing), checkpoint)
        finally:
            await backend.close()


def _spec(scratch: Path, name: str, lower: Path) -> MachineSpec:
    directory = scratch / name
    directory.mkdir()
    return MachineSpec(name, directory, RootFilesystem((Tree("/", "root", (lower,)),), "probe"), "probe", Resources())


def capabilities(cgroups: CgroupTree) -> Capabilities:
    """What can be promised given the cgroups that can be used."""
    privileged = os.geteuid() == 0
    lost = [
        *cgroups.lost,
        *([_DISK_UNLIMITED] if cgroups.limits_direct_writes_only else []),
        "memory: at its limit the sandbox as a whole is ended, since one process of the host holds all of its memory.",
        "cpu: a sandbox goes on seeing as many processors as it started with, also after `resize`.",
        "storage: at its limit the sandbox as a whole is ended, since it is not seen from outside which of its processes writes.",
        "snapshots of files: named pipes are not in them, since they exist in gVisor's kernel only.",
        "files: they have no attributes of users (xattr), which is where metadata of uploaded files is kept.",
        "processes: it is not counted how often `pids` was reached, and root of a sandbox may change it.",
        "memory snapshots: a process that holds a removed file open cannot be written down.",
        *([_SLOW_NETWORK] if privileged else [_NO_NETWORK, _NO_USERS]),
        "idle: each sandbox keeps 3 % of a processor busy though nothing runs in it (runsc's systrap), so that one bears some thirty.",
        "speed: what makes many system calls (building, unpacking, starting programs) takes 3 to 14 times as long.",
    ]
    return Capabilities(
        memory_snapshot=True,
        filesystem_snapshot=True,
        pause=True,
        live_resize=True,
        memory_limit="memory" in cgroups.controllers,
        cpu_limit="cpu" in cgroups.controllers,
        process_limit=True,
        disk_limit="io" in cgroups.controllers and not cgroups.limits_direct_writes_only,
        network=privileged,
        users=privileged,
        rootless=True,
        lost=tuple(lost),
    )
