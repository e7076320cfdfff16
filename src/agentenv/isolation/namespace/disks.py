"""Which disks a sandbox's files lie on, and how their traffic is limited through its cgroup."""

from __future__ import annotations

import os
from pathlib import Path

from agentenv.errors import CapabilityError
from agentenv.isolation.contract import MachineSpec, Resources
from agentenv.isolation.namespace.cgroup_discovery import unescape
from agentenv.isolation.namespace.cgroups import Cgroup

_BLOCK_DEVICES = Path("/sys/dev/block")


def limit_disks(cgroup: Cgroup, spec: MachineSpec, resources: Resources, *, writes_directly: bool = True) -> None:
    """Holds what runs in `cgroup` to the disk limits of `resources`, on each disk that files of the sandbox `spec` lie on.

    To be called when it runs; nothing happens where `resources` has no such limit. Without `writes_directly` all that it writes waits in
    the page cache first, which version 1 of cgroups does not hold back. Raises `CapabilityError` where disk traffic cannot be
    limited, `InfrastructureError` when the kernel refuses.
    """
    if not resources.limits_disks:
        return
    if not writes_directly and cgroup.limits_direct_writes_only:
        raise CapabilityError(
            "disk traffic cannot be limited here: version 1 of cgroups cannot hold back what waits in the page cache.",
            remedy="Leave `resources.disk_read`, `disk_write` and `disk_iops` out, or boot the machine with version 2 of cgroups.",
        )
    places = {spec.directory, *(lower for tree in spec.root.trees for lower in tree.lowers)}
    disks = {disk for place in places if (disk := whole_disk(place)) is not None}
    if not disks:
        raise CapabilityError(
            f"disk traffic cannot be limited here: {spec.directory} lies on no disk of this machine (but in memory, or on a network).",
            remedy="Leave `resources.disk_read`, `disk_write` and `disk_iops` out, or put AGENTENV_HOME on a local disk.",
        )
    for disk in disks:
        cgroup.limit_io(disk, read_bytes=resources.disk_read, write_bytes=resources.disk_write, operations=resources.disk_iops)


def whole_disk(place: Path) -> str | None:
    """`major:minor` of the disk that a file or directory lies on, not of the partition, since only whole disks can be limited.

    None for one on a file system without a disk.
    """
    number = place.stat().st_dev
    if os.major(number) == 0:
        # A file system over several disks (btrfs) has a number of its own; its first disk is what is mounted.
        source = _mounted_at(place.resolve())
        if source is None:
            return None
        number = source.stat().st_rdev
    device = _BLOCK_DEVICES / f"{os.major(number)}:{os.minor(number)}"
    if not device.exists():
        return None
    return (device.resolve().parent / "dev" if (device / "partition").exists() else device / "dev").read_text().strip()


def _mounted_at(place: Path) -> Path | None:
    """The block device that is mounted where `place` lies (proc(5), /proc/PID/mountinfo)."""
    mounts: list[tuple[Path, Path]] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        mounts.append((Path(unescape(left.split(" ")[4])), Path(unescape(right.split(" ")[1]))))
    over = [(len(point.parts), number, source) for number, (point, source) in enumerate(mounts) if place.is_relative_to(point)]
    # The deepest, and where several lie over each other the last.
    source = max(over)[2]
    return source if source.is_block_device() else None
