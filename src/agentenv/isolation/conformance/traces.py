"""Finds what a sandbox may leave on this machine, whatever backend it ran on: processes, mounts, cgroups that name its directory."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentenv.isolation.conformance.check import NotApplicable
from agentenv.isolation.contract import Machine
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.namespace.launcher import readable

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Traces:
    """What still names a directory. `processes` are numbers of this machine, `mounts` lines of a mountinfo, `cgroups` names."""

    processes: tuple[int, ...] = ()
    mounts: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.processes or self.mounts or self.cgroups)

    def __str__(self) -> str:
        told = [f"process {pid} ({_command(pid)})" for pid in self.processes]
        told += [f"mount {line.split()[4]}" for line in self.mounts]
        told += [f"cgroup {name}" for name in self.cgroups]
        return ", ".join(told) or "nothing"


def traces_of(directory: Path, owners: tuple[str, ...] = ()) -> Traces:
    """What there is that names `directory` or something in it, this process aside, and every cgroup that carries the name of an owner."""
    processes, mounts = [], set()
    wanted = os.fsencode(directory)
    for entry in _PROC.glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        lines = _mounts(entry, wanted)
        if lines or any(wanted in word for word in _words(entry)):
            processes.append(int(entry.name))
        mounts.update(lines)
    mounts.update(_mounts(_PROC / "self", wanted))
    cgroups = [name for name in CgroupTree.discover().names() if any(owner in name for owner in owners)] if owners else []
    return Traces(tuple(sorted(processes)), tuple(sorted(mounts)), tuple(cgroups))


async def wait_until_gone(directory: Path, owners: tuple[str, ...] = (), *, seconds: float = 30.0) -> Traces:
    """What is left when the processes that name `directory` have had `seconds` to end, as they do without help in their own time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while (left := await asyncio.to_thread(traces_of, directory, owners)).processes:
                for pid in left.processes:
                    await _ended(pid)
    return await asyncio.to_thread(traces_of, directory, owners)


async def kill_from_outside(machine: Machine, directory: Path) -> None:
    """Kills what a machine is on this machine, as somebody would who knows nothing of us: its process, or all that name its directory."""
    pid: int | None = getattr(machine, "pid", None)
    pids = (pid,) if pid is not None else (await asyncio.to_thread(traces_of, directory)).processes
    if not pids:
        raise NotApplicable("no process of this machine can be told to be its machine's.")
    for one in pids:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def open_descriptors() -> int:
    """How many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def _ended(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await readable(asyncio.get_running_loop(), descriptor)
    finally:
        os.close(descriptor)


def _words(entry: Path) -> Iterator[bytes]:
    """Everything by which a process may name a directory: its command line, where it stands, what it has open."""
    with suppress(OSError):
        yield (entry / "cmdline").read_bytes()
    for link in ("cwd", "root", "exe"):
        with suppress(OSError):
            yield os.fsencode((entry / link).readlink())
    with suppress(OSError):
        for descriptor in (entry / "fd").iterdir():
            with suppress(OSError):
                yield os.fsencode(descriptor.readlink())


def _mounts(entry: Path, wanted: bytes) -> list[str]:
    with suppress(OSError):
        return [os.fsdecode(line) for line in (entry / "mountinfo").read_bytes().splitlines() if wanted in line]
    return []


def _command(pid: int) -> str:
    with suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:120] or "no command line"
    return "ended meanwhile"
