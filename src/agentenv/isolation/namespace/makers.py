"""Which process made a cgroup, as its name tells, and whether that process is provably gone.

What an owner leaves when it is killed together with its AGENTENV_HOME can be found by nobody who knows that home; but everybody on the
machine, also in a container beside it, sees the cgroups. So their names say who made them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Self

FIRST_NAMESPACE = 0xEFFFFFFC
"""The number of the machine's first process namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO): in it all processes are seen."""


class Maker(NamedTuple):
    """A process: its number in the process namespace `namespace`, and when it started, in clock ticks since boot."""

    pid: int
    started: int
    namespace: int

    @classmethod
    def this_process(cls) -> Self:
        return cls(os.getpid(), start_ticks(os.getpid()) or 0, process_namespace())

    @classmethod
    def parse(cls, word: str) -> Self:
        """From what `str` gives."""
        return cls(*map(int, word.split(".")))

    def __str__(self) -> str:
        return ".".join(map(str, self))

    def is_gone(self) -> bool:
        """Whether it is sure that this process has ended; False for one that this process cannot see."""
        if str(os.getpid()) != os.readlink("/proc/self"):  # noqa: PTH115 - the link's text is what counts
            return False  # this /proc shows another process namespace
        if self.namespace == process_namespace():
            return start_ticks(self.pid) != self.started
        return process_namespace() == FIRST_NAMESPACE and os.geteuid() == 0 and not _is_seen(self.pid, self.namespace)


def _is_seen(pid: int, namespace: int) -> bool:
    """Whether any process in a namespace below ours has this number in that one."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            if _numbers(Path(entry.path))[1:][-1:] == [pid] and Path(entry.path, "ns/pid").stat().st_ino == namespace:
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        except PermissionError:
            return True  # a process that hides where it is: it may be this one
    return False


def _numbers(process: Path) -> list[int]:
    """A process's numbers in ours and in each namespace below that it is in: the line "NSpid" (proc(5))."""
    lines = (process / "status").read_text().splitlines()
    return next(([int(word) for word in line.split()[1:]] for line in lines if line.startswith("NSpid:")), [])


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot, which tells it from a later one of the same number; None when there is none."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # proc(5): the second field is a name in parentheses that may hold anything; the start time is the 22nd.
    fields = status[status.rindex(b")") + 2 :].split()
    return None if fields[0] in b"ZX" else int(fields[19])


def process_namespace() -> int:
    """The number of this process's process namespace."""
    return Path("/proc/self/ns/pid").stat().st_ino
