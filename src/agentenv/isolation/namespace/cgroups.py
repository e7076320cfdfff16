"""One cgroup per sandbox, in as many hierarchies as it takes to limit, sense, freeze and kill it.

Version 2 senses (pressure), freezes and kills wherever it is mounted, with or without controllers; each limit is set through
whichever version holds its controller. Everything here is synchronous and short (tens of microseconds) except the waits in
`freeze` and `remove`, which end with the kernel's notification; `docs/resources.md` has the whole picture.
"""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from agentenv.errors import CapabilityError, InfrastructureError
from agentenv.isolation.contract import OomKill, Resources, Usage
from agentenv.isolation.namespace import cgroup_discovery, cgroup_signals, cgroup_v1, cgroup_v2, kernel_log
from agentenv.isolation.namespace import cgroup_files as files
from agentenv.isolation.namespace.cgroup_discovery import Hierarchy
from agentenv.isolation.namespace.makers import Maker

_PREFIX = "agentenv-"
_NAME = re.compile(rf"{_PREFIX}[A-Za-z0-9_.-]{{1,190}}")
DIRECT_WRITES_ONLY: Final = (
    "disk: version 1 of cgroups holds back what is read, and what is written past the page cache (O_DIRECT, O_DSYNC); writes that wait in"
    " the page cache are written out by the kernel itself, without a limit."
)
_OWNED = re.compile(rf"{_PREFIX}(?P<owner>.+?)-(?:(?P<maker>\d+\.\d+\.\d+)-)?(?P<machine>[^-]+)")


class Driver(Protocol):
    """What the modules `cgroup_v1` and `cgroup_v2` both offer, each in the files of its version."""

    def set_memory(self, directory: str, limit: int) -> None: ...
    def set_cpu(self, directory: str, cores: float) -> None: ...
    def set_processes(self, directory: str, limit: int) -> None: ...
    def set_io(self, directory: str, device: str, read_bytes: int | None, write_bytes: int | None, operations: int | None) -> None: ...
    def memory(self, directory: str) -> tuple[int | None, int | None, int | None]: ...
    def oom_kills(self, directory: str) -> int: ...
    def throttled_seconds(self, directory: str) -> float | None: ...


class Control(NamedTuple):
    """Where one controller of one sandbox is steered."""

    driver: Driver
    directory: str


class MemoryFiles(NamedTuple):
    """What a sandbox's agent reads of its own cgroup."""

    usage: str
    oom_kills: str


_DRIVERS: Final[dict[int, Driver]] = {1: cgroup_v1, 2: cgroup_v2}


def group_name(owner: str, machine: str) -> str:
    """The name of a machine's cgroup, from which the owner can be found again (`CgroupTree.by_owner`) and this process (`maker_of`).

    A machine's id holds no hyphen.
    """
    name = f"{_PREFIX}{owner}-{Maker.this_process()}-{machine}"
    if "-" in machine or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be a cgroup's name: letters, digits, '_' and '.', and no '-' in the machine's id.")
    return name


def maker_of(name: str) -> Maker | None:
    """The process that made a cgroup of this name; None where the name does not tell."""
    match = _OWNED.fullmatch(name)
    return Maker.parse(match["maker"]) if match and match["maker"] else None


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """Where sandboxes' cgroups go on this machine, and what is `lost` (plain sentences) for want of a controller or permission."""

    hierarchies: tuple[Hierarchy, ...]
    lost: tuple[str, ...]

    @classmethod
    def discover(cls, mountinfo: str | None = None, memberships: str | None = None) -> CgroupTree:
        """Finds what this process can use; changes nothing. The arguments stand in for /proc/self/mountinfo and /proc/self/cgroup."""
        found = cgroup_discovery.discover(mountinfo, memberships)
        return cls(found.hierarchies, found.lost)

    @property
    def controllers(self) -> frozenset[str]:
        """Which of "memory", "cpu", "pids" and "io" can be limited."""
        return frozenset().union(*(hierarchy.controllers for hierarchy in self.hierarchies)) & {"memory", "cpu", "pids", "io"}

    @property
    def limits_direct_writes_only(self) -> bool:
        """Whether what is written to disks is limited, but not where the page cache lies between (`DIRECT_WRITES_ONLY`)."""
        return any("io" in hierarchy.controllers and hierarchy.version == 1 for hierarchy in self.hierarchies)

    @property
    def can_freeze(self) -> bool:
        """Whether a sandbox can be paused."""
        return any(hierarchy.version == 2 or "freezer" in hierarchy.controllers for hierarchy in self.hierarchies)

    def create(self, name: str) -> Cgroup:
        """Makes the cgroup in every hierarchy that it enters at its start, or in none: a failure removes what was made before it.

        Raises `InfrastructureError` when the kernel refuses, a group of that name included.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a sandbox's cgroup: `{_PREFIX}`, then letters, digits, '_', '.' and '-' only.")
        made: list[str] = []
        try:
            for hierarchy in self.hierarchies:
                if hierarchy.deferred:
                    continue
                _make(hierarchy, name)
                made.append(f"{hierarchy.base}/{name}")
        except OSError as error:
            for directory in made:
                Path(directory).rmdir()
            raise InfrastructureError(
                f"cgroup {error.filename} cannot be made: {error.strerror}.",
                remedy="Run `agentenv doctor`; it says which limits can be used here.",
            ) from error
        return self.open(name)

    def open(self, name: str) -> Cgroup:
        """The handle of a cgroup that was made before, by this process or another."""
        return Cgroup(name, self.hierarchies)

    def names(self) -> list[str]:
        """Every sandbox's cgroup on this machine that lies under our bases, of all owners."""
        found: set[str] = set()
        for hierarchy in self.hierarchies:
            with os.scandir(hierarchy.base) as entries:
                found.update(entry.name for entry in entries if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False))
        return sorted(found)

    def by_owner(self) -> dict[str, list[str]]:
        """`names`, grouped by the owner in each; names that `group_name` did not make are left out."""
        owners: defaultdict[str, list[str]] = defaultdict(list)
        for name in self.names():
            if match := _OWNED.fullmatch(name):
                owners[match["owner"]].append(name)
        return dict(owners)

    def remove(self, name: str) -> None:
        """Kills what is in the cgroup and removes it; nothing happens if there is none. Raises as `Cgroup.remove`."""
        self.open(name).remove()


def _make(hierarchy: Hierarchy, name: str) -> None:
    """One mkdir, once the base hands its controllers down (version 2 only)."""
    if hierarchy.version == 2 and hierarchy.controllers:
        handed_down = (files.read(f"{hierarchy.base}/cgroup.subtree_control") or "").split()
        if missing := hierarchy.controllers.difference(handed_down):
            files.write(f"{hierarchy.base}/cgroup.subtree_control", " ".join(f"+{controller}" for controller in sorted(missing)))
    os.mkdir(f"{hierarchy.base}/{name}")  # noqa: PTH102 - on the path that every start takes, and a plain string is what we have


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One sandbox's cgroup. Without any hierarchy it limits nothing and `kill` leaves the killing to the end of the pid namespace."""

    name: str
    hierarchies: tuple[Hierarchy, ...]

    def _directories(self) -> Iterator[tuple[Hierarchy, str]]:
        """Where every process of the sandbox is."""
        return ((hierarchy, f"{hierarchy.base}/{self.name}") for hierarchy in self.hierarchies if not hierarchy.deferred)

    def _control(self, controller: str) -> Control | None:
        for hierarchy in self.hierarchies:
            if controller in hierarchy.controllers:
                return Control(_DRIVERS[hierarchy.version], f"{hierarchy.base}/{self.name}")
        return None

    @property
    def v2_directory(self) -> str | None:
        """The directory for clone3's CLONE_INTO_CGROUP, which enters faster than a write to `cgroup.procs`: it takes no global lock."""
        return next((directory for hierarchy, directory in self._directories() if hierarchy.version == 2), None)

    @property
    def v1_enter_files(self) -> tuple[str, ...]:
        """Files that a single-threaded process writes "0" into to enter the version 1 hierarchies."""
        return tuple(f"{directory}/tasks" for hierarchy, directory in self._directories() if hierarchy.version == 1)

    @property
    def procs_files(self) -> tuple[Path, ...]:
        """Files that a process writes "0" into, once each and before its exec, to enter the cgroup in every hierarchy."""
        return tuple(Path(directory, "cgroup.procs") for _, directory in self._directories())

    @property
    def entrances(self) -> tuple[Path, ...]:
        """Files that a process of one thread writes "0" into to enter the cgroup in every hierarchy.

        In version 1 without the lock over all processes that `procs_files` takes there, for which a writer often waits some milliseconds.
        """
        return tuple(Path(directory, "tasks" if one.version == 1 else "cgroup.procs") for one, directory in self._directories())

    @property
    def memory_files(self) -> MemoryFiles | None:
        """The files with the bytes in use and the kills for want of them; None where memory is not accounted."""
        control = self._control("memory")
        if control is None:
            return None
        driver, directory = control
        usage, kills = ("memory.current", "memory.events") if driver is cgroup_v2 else ("memory.usage_in_bytes", "memory.oom_control")
        return MemoryFiles(f"{directory}/{usage}", f"{directory}/{kills}")

    def apply(self, resources: Resources) -> None:
        """Sets the limits, also of a live sandbox; a None leaves that limit as it is, as does a limit that the tree has `lost`.

        Raises `InvalidState` when memory in use cannot be pushed below the new limit (the old one stays), `InfrastructureError`
        when the kernel refuses.
        """
        memory, cpu, pids = self._control("memory"), self._control("cpu"), self._control("pids")
        try:
            if memory and resources.memory is not None:
                memory.driver.set_memory(memory.directory, resources.memory)
            if cpu and resources.cpu is not None:
                cpu.driver.set_cpu(cpu.directory, resources.cpu)
            if pids and resources.pids is not None:
                pids.driver.set_processes(pids.directory, resources.pids)
        except OSError as error:
            raise InfrastructureError(
                f"the kernel refused a limit of cgroup {self.name} ({resources}): {error.strerror}.",
                remedy="Choose values that this machine has, or end the sandbox if it is already gone.",
            ) from error

    @property
    def limits_direct_writes_only(self) -> bool:
        """As `CgroupTree.limits_direct_writes_only`."""
        control = self._control("io")
        return control is not None and control.driver is cgroup_v1

    def limit_io(
        self, device: str, *, read_bytes: int | None = None, write_bytes: int | None = None, operations: int | None = None
    ) -> None:
        """Bytes a second from and to the block device `major:minor`, and `operations` a second in each direction; None is unlimited.

        Raises `CapabilityError` where disk traffic cannot be limited.
        """
        control = self._control("io")
        if control is None:
            raise CapabilityError(
                "disk traffic cannot be limited here: no io (v2) or blkio (v1) controller can be used.",
                remedy="Leave `resources.disk_read`, `disk_write` and `disk_iops` out; `agentenv doctor` says what is missing.",
            )
        driver, directory = control
        try:
            self._enter_deferred()
            driver.set_io(directory, device, read_bytes, write_bytes, operations)
        except OSError as error:
            raise InfrastructureError(
                f"the kernel refused to limit disk {device} for cgroup {self.name}: {error.strerror}.",
                remedy="Name a whole disk as `major:minor` (`lsblk` shows them), of a sandbox that is alive.",
            ) from error

    def _enter_deferred(self) -> None:
        """Moves what runs into the hierarchies that were left out at the start; what is forked from then on is born there."""
        members = next((f"{directory}/cgroup.procs" for _, directory in self._directories()), None)
        for hierarchy in self.hierarchies:
            if not hierarchy.deferred:
                continue
            if not Path(f"{hierarchy.base}/{self.name}").is_dir():
                _make(hierarchy, self.name)
            inside = f"{hierarchy.base}/{self.name}/cgroup.procs"
            while members and (outside := set(files.read_processes(members)) - set(files.read_processes(inside))):
                for pid in outside:
                    # One that has ended in the meantime is nobody's concern.
                    with suppress(ProcessLookupError):
                        files.write(inside, str(pid))

    def freeze(self, timeout: float = 5.0) -> None:
        """Returns when every process is frozen.

        Raises `CapabilityError` without a freezer, `InfrastructureError` after `timeout` seconds (then thawed again).
        """
        cgroup_signals.freeze(self._freezer(), self.name, timeout)

    def thaw(self) -> None:
        """Lets the processes go on. Raises `CapabilityError` without a freezer."""
        cgroup_signals.thaw(self._freezer())

    def _freezer(self) -> cgroup_signals.Freezer:
        for hierarchy, directory in self._directories():
            if hierarchy.version == 2 or "freezer" in hierarchy.controllers:
                return cgroup_signals.Freezer(hierarchy.version, directory)
        raise CapabilityError("a sandbox cannot be paused here: no cgroup hierarchy with a freezer can be used.")

    def kill(self, timeout: float = 10.0) -> None:
        """Sends SIGKILL to every process in it, frozen ones and those being forked included; nothing happens if it is gone.

        With version 2 it returns at once, without it when the processes are gone or `timeout` seconds have passed.
        """
        for hierarchy, directory in self._directories():
            if hierarchy.version == 2:
                cgroup_signals.kill_v2(directory)
                return
        frozen = next((directory for hierarchy, directory in self._directories() if "freezer" in hierarchy.controllers), None)
        directories = [directory for _, directory in self._directories()]
        if directories:
            cgroup_signals.kill_v1(directories[0], frozen, timeout)

    def usage(self) -> Usage:
        """What the sandbox uses now; fields that this tree cannot tell are None."""
        used = peak = limit = None
        if memory := self._control("memory"):
            used, peak, limit = memory.driver.memory(memory.directory)
        cpu, pids = self._control("cpu"), self._control("pids")
        seconds = cpu_pressure = memory_pressure = io_pressure = None
        if v2 := self.v2_directory:
            seconds = cgroup_v2.cpu_seconds(v2)
            cpu_pressure, memory_pressure, io_pressure = cgroup_v2.pressures(v2)
        elif accounting := self._control("cpuacct"):
            seconds = cgroup_v1.cpu_seconds(accounting.directory)
        return Usage(
            memory=used,
            memory_peak=peak,
            memory_limit=limit,
            cpu_seconds=seconds,
            throttled_seconds=cpu.driver.throttled_seconds(cpu.directory) if cpu else None,
            processes=files.read_number(f"{pids.directory}/pids.current") if pids else None,
            cpu_pressure=cpu_pressure,
            memory_pressure=memory_pressure,
            io_pressure=io_pressure,
        )

    def oom_kills(self) -> tuple[OomKill, ...]:
        """The kernel's out-of-memory kills at this limit, the oldest first; a name is None where the kernel's log lost or hides it."""
        control = self._control("memory")
        if control is None:
            return ()
        driver, directory = control
        count = driver.oom_kills(directory)
        if count == 0:
            return ()
        _, peak, limit = driver.memory(directory)
        names: tuple[str | None, ...] = kernel_log.killed_in(f"/{self.name}")[-count:]
        names = (None,) * (count - len(names)) + names
        return tuple(OomKill(limit=limit or 0, peak=peak or 0, process=name) for name in names)

    def process_limit_hits(self) -> int:
        """How often a fork was refused because of the limit on processes."""
        control = self._control("pids")
        return files.read_counters(f"{control.directory}/pids.events").get("max", 0) if control else 0

    def remove(self, timeout: float = 10.0) -> None:
        """Kills what is inside, waits until it is gone, and removes the cgroup from every hierarchy. Idempotent.

        Raises `InfrastructureError` when something inside does not die within `timeout` seconds (a process stuck in the kernel).
        """
        self.kill(timeout)
        if (v2 := self.v2_directory) is not None:
            cgroup_signals.wait_until_empty(v2, self.name, timeout)
        for hierarchy in self.hierarchies:
            _remove_directory(f"{hierarchy.base}/{self.name}")


def _remove_directory(directory: str) -> None:
    """Removes the group and, the deepest first, any group below it."""
    try:
        os.rmdir(directory)  # noqa: PTH106 - on the path that every end takes, and a plain string is what we have
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise InfrastructureError(f"cgroup {directory} cannot be removed: {error.strerror}.") from error
        with os.scandir(directory) as entries:
            below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        if not below:
            raise InfrastructureError(f"cgroup {directory} cannot be removed: a process is still in it.") from error
        for child in below:
            _remove_directory(child)
        _remove_directory(directory)
