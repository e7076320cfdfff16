"""The limits and readings of version 1 cgroups, with the same functions as `cgroup_v2`. Files as in the kernel's cgroup-v1/."""

from __future__ import annotations

import errno

from agentenv.errors import InvalidState
from agentenv.isolation.namespace import cgroup_files as files
from agentenv.isolation.namespace.cgroup_v2 import PERIOD_US, cannot_shrink


def set_memory(directory: str, limit: int) -> None:
    """Limits memory, and memory with swap to the same. Raises `InvalidState` when what is in use cannot be pushed below `limit`.

    The kernel keeps "memory <= memory + swap" at every moment, so the order of the two writes depends on the direction.
    """
    plain, with_swap = f"{directory}/memory.limit_in_bytes", f"{directory}/memory.memsw.limit_in_bytes"
    bound = files.read_number(with_swap)
    if bound is not None and limit > bound:
        files.write(with_swap, str(limit))
        files.write(plain, str(limit))
        return
    before = files.read_number(plain)
    _shrink(directory, plain, limit)
    try:
        if bound is not None:
            _shrink(directory, with_swap, limit)
    except InvalidState:
        files.write(plain, str(before))
        raise


def _shrink(directory: str, path: str, limit: int) -> None:
    """Lowers a limit. The kernel reclaims and says EBUSY when that was not enough; then the page cache is dropped and it tries again."""
    try:
        files.write(path, str(limit))
        return
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    files.write(f"{directory}/memory.force_empty", "0")
    try:
        files.write(path, str(limit))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        raise cannot_shrink(limit, files.read_number(f"{directory}/memory.usage_in_bytes") or 0) from error


def set_cpu(directory: str, cores: float) -> None:
    """A hard quota of `cores`, and shares in proportion for when the machine is contended."""
    files.write(f"{directory}/cpu.cfs_quota_us", str(max(1000, round(cores * PERIOD_US))))
    files.write(f"{directory}/cpu.shares", str(min(262_144, max(2, round(cores * 1024)))))


def set_processes(directory: str, limit: int) -> None:
    """At most `limit` processes and threads."""
    files.write(f"{directory}/pids.max", str(limit))


def set_io(directory: str, device: str, read_bytes: int | None, write_bytes: int | None, operations: int | None) -> None:
    """Bytes a second from and to the block device `major:minor`, and operations in each direction; None is unlimited."""
    for direction, value in (("read", read_bytes), ("write", write_bytes)):
        files.write(f"{directory}/blkio.throttle.{direction}_bps_device", f"{device} {value or 0}")
        files.write(f"{directory}/blkio.throttle.{direction}_iops_device", f"{device} {operations or 0}")


def memory(directory: str) -> tuple[int | None, int | None, int | None]:
    """(in use, peak, limit) in bytes; the limit is None where there is none."""
    used, peak, limit = (files.read_number(f"{directory}/memory.{name}_in_bytes") for name in ("usage", "max_usage", "limit"))
    return used, peak, None if limit is not None and limit >= files.UNLIMITED_V1 else limit


def oom_kills(directory: str) -> int:
    """How many processes the kernel has killed for want of memory."""
    return files.read_counters(f"{directory}/memory.oom_control").get("oom_kill", 0)


def throttled_seconds(directory: str) -> float | None:
    """Seconds that the quota held tasks back."""
    value = files.read_counters(f"{directory}/cpu.stat").get("throttled_time")
    return None if value is None else value / 1e9


def cpu_seconds(directory: str) -> float | None:
    """Seconds of processor time used (of a group in the cpuacct hierarchy)."""
    value = files.read_number(f"{directory}/cpuacct.usage")
    return None if value is None else value / 1e9
