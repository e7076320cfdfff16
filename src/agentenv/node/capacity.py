"""Refuses, before anything is made, what this machine could never give."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import CapabilityError, StorageFull
from agentenv.isolation.contract import Resources

LEAST_FREE = 16 << 20
"""Bytes that must be free on the disk of AGENTENV_HOME for a sandbox to start."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the machine has: `cores`, and `memory` in bytes. The limits of all sandboxes together may exceed it: they reserve nothing."""

    cores: int
    memory: int

    @classmethod
    def of_this_machine(cls) -> Capacity:
        return cls(os.cpu_count() or 1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    def check(self, resources: Resources) -> None:
        """Raises `CapabilityError` for a limit above what there is, or for one that no process could live under."""
        if resources.cpu is not None and not 0 < resources.cpu <= self.cores:
            raise CapabilityError(f"resources.cpu is {resources.cpu:g}, and this machine has {self.cores} cores.", remedy="Ask for fewer.")
        if resources.memory is not None and not 0 < resources.memory <= self.memory:
            wanted, there = resources.memory >> 20, self.memory >> 20
            raise CapabilityError(f"resources.memory is {wanted} MiB, and this machine has {there} MiB.", remedy="Ask for less.")
        if resources.storage is not None and resources.storage <= 0:
            raise CapabilityError(f"resources.storage is {resources.storage} bytes.", remedy="Leave it out for no limit.")
        for name in ("disk_read", "disk_write", "disk_iops"):
            if (rate := getattr(resources, name)) is not None and rate <= 0:
                raise CapabilityError(f"resources.{name} is {rate} a second.", remedy="Leave it out for no limit.")
        if resources.pids is not None and resources.pids <= 0:
            raise CapabilityError(f"resources.pids is {resources.pids}.", remedy="Leave it out for the default.")


def check_disk(sandbox_id: str, home: Path) -> None:
    """Raises `StorageFull` when the disk of AGENTENV_HOME has no room for one more sandbox."""
    disk = os.statvfs(home)
    if disk.f_bavail * disk.f_frsize < LEAST_FREE:
        raise disk_full(sandbox_id, home)


def disk_full(sandbox_id: str, home: Path) -> StorageFull:
    """The error for a full disk of AGENTENV_HOME, with its figures."""
    disk = os.statvfs(home)
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    return StorageFull(sandbox_id, limit=total, used=total - free, disk=f"AGENTENV_HOME (where {home} lies)")


def is_disk_full(error: OSError) -> bool:
    """Whether that is what the kernel complains about, a quota included."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
