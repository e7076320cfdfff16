"""A ceiling for single files (RLIMIT_FSIZE, setrlimit(2)): it stops one endless file between two looks of the watch over storage."""

from __future__ import annotations

import os
import resource

from agentenv.isolation.contract import Resources


def file_size_ceiling(resources: Resources) -> int | None:
    """Bytes: the storage limit, or what /dev/shm may hold if that is more, since the kernel's limit does not tell memory from disk.

    None where storage is unlimited.
    """
    if resources.storage is None:
        return None
    memory = resources.memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(resources.storage, memory // 2)


def limit_file_size(pid: int, resources: Resources) -> None:
    """Sets the ceiling for process `pid` and all that it starts from now on; nothing happens if it is gone.

    Only the soft limit is set: few may raise a hard one again, which a larger storage limit would have to. A program that raises its
    own is still seen by the watch.
    """
    ceiling = file_size_ceiling(resources)
    if ceiling is None:
        return
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        bounded = ceiling if hard == resource.RLIM_INFINITY else min(ceiling, hard)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (bounded, hard))
    except ProcessLookupError:
        return
