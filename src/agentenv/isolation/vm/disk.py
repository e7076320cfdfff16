"""The disk of a guest's writable files: one sparse ext4 image, copied without its holes or, where the file system can, without its data."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from agentenv.errors import BackendUnavailable, InfrastructureError
from agentenv.isolation.artefacts.storing import make_once

DISK = Path("upper/disk.img")
"""The writable disk in a machine's directory."""

DEFAULT_SIZE = 64 << 30
"""Bytes of a disk whose sandbox has no limit; the image takes only what is written."""

LEAST_SIZE = 16 << 20
_ALIGNMENT = 1 << 20
_FICLONE = 0x40049409
_CANNOT_CLONE = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM}
_CHUNK = 1 << 30

# Nothing outlives a crash of the machine, so there is no journal; inode tables are written when they are used.
_OPTIONS = ("-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0")


def empty_disk(size: int | None, directory: Path) -> Path:
    """An image with an empty file system of `size` bytes (None: `DEFAULT_SIZE`), made once and kept in `directory`."""
    wanted = max(size or DEFAULT_SIZE, LEAST_SIZE) // _ALIGNMENT * _ALIGNMENT
    path = directory / f"empty-{wanted}.ext4"

    def make(partial: Path) -> None:
        program = find_tool("mkfs.ext4")
        if program is None:
            raise BackendUnavailable("there is no mkfs.ext4 for the disks of virtual machines.", remedy="Install the package e2fsprogs.")
        with partial.open("wb") as file:
            file.truncate(wanted)
        done = subprocess.run([program, *_OPTIONS, str(partial)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InfrastructureError(f"the empty disk could not be made: {done.stderr.strip()}.")

    make_once(path, make)
    return path


def clone_disk(source: Path, target: Path) -> None:
    """Copies the image `source` to the new file `target`: sharing its blocks where the file system can, else without its holes.

    Raises `InfrastructureError` when the disk is full; nothing is left then.
    """
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if not _share(reading, writing):
                _copy_data(reading, writing)
        except OSError as error:
            target.unlink(missing_ok=True)
            raise InfrastructureError(f"the disk {target} could not be copied: {error.strerror}.") from error
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def find_tool(name: str) -> str | None:
    """A program of the system's administration, which an ordinary user's PATH may lack."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _share(reading: int, writing: int) -> bool:
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError as error:
        if error.errno in _CANNOT_CLONE:
            return False
        raise
    return True


def _copy_data(reading: int, writing: int) -> None:
    size, position = os.fstat(reading).st_size, 0
    os.ftruncate(writing, size)
    while position < size:
        try:
            start = os.lseek(reading, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = min(os.lseek(reading, start, os.SEEK_HOLE), size)
        while start < end:
            copied = _copy_some(reading, writing, start, min(end - start, _CHUNK))
            if copied == 0:
                return
            start += copied
        position = end


def _copy_some(reading: int, writing: int, position: int, length: int) -> int:
    try:
        return os.copy_file_range(reading, writing, length, position, position)
    except OSError as error:
        if error.errno not in _CANNOT_CLONE:
            raise
    # Between file systems of two kinds.
    os.lseek(writing, position, os.SEEK_SET)
    return os.sendfile(writing, reading, position, length)
