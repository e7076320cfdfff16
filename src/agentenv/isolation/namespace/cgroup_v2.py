"""The limits and readings of a version 2 cgroup; units are bytes, cores and seconds. Files as in the kernel's cgroup-v2.rst."""

from __future__ import annotations

from contextlib import suppress

from agentenv.errors import InvalidState
from agentenv.isolation.namespace import cgroup_files as files

PERIOD_US = 100_000
"""The kernel's own default: processor time is granted anew ten times a second."""


def set_memory(directory: str, limit: int) -> None:
    """Limits memory, without swap. Raises `InvalidState` when what is in use cannot be pushed below `limit`.

    Writing a limit below the use would make the kernel kill at once, so what can be reclaimed is reclaimed first.
    """
    used = files.read_number(f"{directory}/memory.current") or 0
    if used > limit:
        # EAGAIN: less than asked could be reclaimed; ENOENT before Linux 5.19. What is left is judged by its number.
        with suppress(OSError):
            files.write(f"{directory}/memory.reclaim", str(used - limit))
        used = files.read_number(f"{directory}/memory.current") or 0
        if used > limit:
            raise cannot_shrink(limit, used)
    files.write_if_present(f"{directory}/memory.swap.max", "0")
    files.write_if_present(f"{directory}/memory.oom.group", "0")
    files.write(f"{directory}/memory.max", str(limit))


def cannot_shrink(limit: int, used: int) -> InvalidState:
    """The error for a memory limit below what is in use."""
    return InvalidState(
        f"the memory limit cannot be lowered to {limit >> 20} MiB: {used >> 20} MiB are in use and cannot be reclaimed.",
        remedy="Let the programs in the sandbox free memory first, or choose a higher limit; the old limit still holds.",
    )


def set_cpu(directory: str, cores: float) -> None:
    """A hard quota of `cores`, and a weight in proportion for when the machine is contended."""
    files.write(f"{directory}/cpu.max", f"{max(1000, round(cores * PERIOD_US))} {PERIOD_US}")
    files.write(f"{directory}/cpu.weight", str(min(10_000, max(1, round(cores * 100)))))


def set_processes(directory: str, limit: int) -> None:
    """At most `limit` processes and threads."""
    files.write(f"{directory}/pids.max", str(limit))


def set_io(directory: str, device: str, read_bytes: int | None, write_bytes: int | None, operations: int | None) -> None:
    """Bytes a second from and to the block device `major:minor`, and operations in each direction; None is unlimited."""
    limits = {"rbps": read_bytes, "wbps": write_bytes, "riops": operations, "wiops": operations}
    values = (f"{key}={'max' if value is None else value}" for key, value in limits.items())
    files.write(f"{directory}/io.max", f"{device} {' '.join(values)}")


def memory(directory: str) -> tuple[int | None, int | None, int | None]:
    """(in use, peak, limit) in bytes; the peak is None before Linux 5.19, the limit where there is none."""
    used, peak, limit = (files.read_number(f"{directory}/memory.{name}") for name in ("current", "peak", "max"))
    return used, peak, limit


def oom_kills(directory: str) -> int:
    """How many processes the kernel has killed for want of memory."""
    return files.read_counters(f"{directory}/memory.events").get("oom_kill", 0)


def throttled_seconds(directory: str) -> float | None:
    """Seconds that the quota held tasks back."""
    value = files.read_counters(f"{directory}/cpu.stat").get("throttled_usec")
    return None if value is None else value / 1e6


def cpu_seconds(directory: str) -> float | None:
    """Seconds of processor time used; told by every version 2 group, with or without the controller."""
    value = files.read_counters(f"{directory}/cpu.stat").get("usage_usec")
    return None if value is None else value / 1e6


def pressures(directory: str) -> tuple[float | None, float | None, float | None]:
    """Share (0-100) of the last ten seconds in which something stalled for want of (processor, memory, disk); None without PSI."""
    cpu, memory_, io = (files.parse_pressure(files.read(f"{directory}/{name}.pressure")) for name in ("cpu", "memory", "io"))
    return cpu, memory_, io
