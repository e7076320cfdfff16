"""How much disk a directory holds, who writes, and how much is left: plain measurements, nothing kept."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import InfrastructureError

BLOCK = 512
"""The unit of `st_blocks` (stat(2)), whatever the file system's own block size is."""

_EXACT = frozenset({"ext2", "ext3", "ext4", "tmpfs", "xfs"})
"""File systems that reserve a block when a page is written to; btrfs, for one, does so when the page goes to the disk, up to 30 s later."""

_SHARE = 10
"""Who wrote less than this part of the whole is no cause of it."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A process and the bytes that it has caused to be written, as /proc/PID/io counts them (proc(5), `write_bytes`)."""

    pid: int
    name: str
    written: int


def unlinked(pids: Iterable[int]) -> int:
    """Bytes of files without a name that processes keep open on an overlay, which no walk over the names can see.

    Files on a tmpfs and memfds are left out (they are memory), and so are files that are only mapped, not open.
    """
    seen: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            overlays = _overlay_mounts(Path(f"/proc/{pid}/mountinfo").read_text())
            descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:  # it is gone, may not be asked, or has ended and not been reaped, when it has no mounts any more (EINVAL)
            continue
        for descriptor in descriptors:
            try:
                status = descriptor.stat()
                if status.st_nlink or not stat.S_ISREG(status.st_mode):
                    continue
                details = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text()
            except OSError:
                continue
            if _mount_id(details) in overlays:
                seen[status.st_dev, status.st_ino] = status.st_blocks * BLOCK
    return sum(seen.values())


def _overlay_mounts(mountinfo: str) -> set[str]:
    return {line.split(" ", 1)[0] for line in mountinfo.splitlines() if " - overlay " in line}


def _mount_id(fdinfo: str) -> str | None:
    return next((line.split()[1] for line in fdinfo.splitlines() if line.startswith("mnt_id:")), None)


def written(pids: Iterable[int]) -> dict[int, int]:
    """Bytes that each process has caused to be written so far; those that are gone or may not be asked are left out."""
    totals: dict[int, int] = {}
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/io").read_text()
        except OSError:
            continue
        fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        totals[pid] = int(fields.get("write_bytes", "0"))
    return totals


def writers(before: dict[int, int], now: dict[int, int], grown: int = 0) -> tuple[Writer, ...]:
    """Whose counts grew between two results of `written`, who wrote most first; a new process grew from zero.

    Left out is whoever wrote less than a tenth of what the first did, or of the `grown` bytes that are to be explained: beside a program
    that fills the disk, one that adds a line to its log does no harm.
    """
    growth = {pid: total - before.get(pid, 0) for pid, total in now.items()}
    least = max(1, grown // _SHARE, max(growth.values(), default=0) // _SHARE)
    found = sorted((pid for pid, grew in growth.items() if grew >= least), key=growth.__getitem__, reverse=True)
    return tuple(Writer(pid, _name(pid), growth[pid]) for pid in found)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return "a process that has ended"


def tells_at_once(path: Path) -> bool:
    """Whether the disk's free space counts what was written at once, so that an unchanged number means that nothing was."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if left.split(" ", 3)[2] == number:
            return right.split(" ", 1)[0] in _EXACT
    return False


def free_bytes(path: Path) -> int:
    """Bytes on the disk of `path` that unprivileged processes can still use."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def check_free(path: Path, need: int) -> None:
    """Raises `InfrastructureError` when the disk of `path` has less than `need` bytes free, or no place for another file at all."""
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    if free < need:
        raise InfrastructureError(
            f"the disk of {path} is full: {free >> 20} MiB are free, {need >> 20} MiB are needed.",
            remedy="Remove sandboxes and snapshots that are no longer needed, or set AGENTENV_HOME to a larger disk.",
        )
    if disk.f_files and not disk.f_favail:
        raise InfrastructureError(
            f"the disk of {path} has no inode left, so no file can be made there.",
            remedy="Remove files, or set AGENTENV_HOME to another disk.",
        )
