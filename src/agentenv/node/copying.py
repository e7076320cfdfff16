"""Copies trees of changes exactly: whiteouts, overlayfs' attributes, hard links, holes, owners and times are part of what they mean."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.errors import InvalidState

FICLONE = 0x40049409
"""linux/fs.h: make one file share another's blocks (btrfs, XFS, bcachefs)."""

CHUNK = 1 << 30
CANNOT_CLONE = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM}
NO_XATTRS = {errno.EOPNOTSUPP, errno.ENODATA}


@dataclass(slots=True)
class Copied:
    """What was copied: `entries` counts files, directories and everything else; `bytes` the content of regular files, holes left out."""

    entries: int = 0
    bytes: int = 0


@dataclass(slots=True)
class TreeCopier:
    """Copies one tree at a time into an empty directory. When `stop` says so, it ends at the next file with `InvalidState`.

    As root everything is kept; without, a file keeps its owner only as far as the kernel lets us set it.
    """

    stop: Callable[[], bool]
    copied: Copied = field(default_factory=Copied)
    _clones: bool = True
    _links: dict[tuple[int, int], str] = field(default_factory=dict)

    def copy(self, source: Path, target: Path) -> Copied:
        """Copies what is in `source`, and its own attributes, to `target`, which exists. Raises OSError, `InvalidState`."""
        self._directory(os.fspath(source), os.fspath(target))
        _copy_attributes(os.fspath(source), os.fspath(target), source.stat())
        return self.copied

    def _directory(self, source: str, target: str) -> None:
        with os.scandir(source) as entries:
            for entry in entries:
                if self.stop():
                    raise InvalidState("the copy of its files was broken off, since the sandbox ended.")
                self._entry(entry, f"{target}/{entry.name}")

    def _entry(self, entry: os.DirEntry[str], target: str) -> None:
        status = entry.stat(follow_symlinks=False)
        self.copied.entries += 1
        kind = stat.S_IFMT(status.st_mode)
        if kind != stat.S_IFDIR and status.st_nlink > 1:
            first = self._links.setdefault((status.st_dev, status.st_ino), target)
            if first is not target:
                os.link(first, target, follow_symlinks=False)
                return
        if kind == stat.S_IFDIR:
            os.mkdir(target, 0o700)  # noqa: PTH102 - plain strings, since a tree has thousands of entries
            self._directory(entry.path, target)
        elif kind == stat.S_IFREG:
            self._file(entry.path, target, status)
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(entry.path), target)  # noqa: PTH115, PTH211
        elif kind == stat.S_IFSOCK:
            self.copied.entries -= 1
            return  # Nobody listens on a copied socket; programs make it anew.
        else:
            os.mknod(target, status.st_mode, status.st_rdev)
        _copy_attributes(entry.path, target, status)

    def _file(self, source: str, target: str, status: os.stat_result) -> None:
        reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                if status.st_size and not (self._clones and self._clone(reading, writing)):
                    self.copied.bytes += _copy_data(reading, writing, status.st_size)
            finally:
                os.close(writing)
        finally:
            os.close(reading)

    def _clone(self, reading: int, writing: int) -> bool:
        try:
            fcntl.ioctl(writing, FICLONE, reading)
        except OSError as error:
            if error.errno not in CANNOT_CLONE:
                raise
            # What the file system cannot do for one file it cannot do for the next.
            self._clones = False
            return False
        return True


def _copy_data(reading: int, writing: int, size: int) -> int:
    """Copies content within the kernel, without the holes; returns the number of bytes copied."""
    copied, position = 0, 0
    while position < size:
        try:
            start = os.lseek(reading, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        end = min(os.lseek(reading, start, os.SEEK_HOLE), size)
        position = start
        while position < end:
            count = os.copy_file_range(reading, writing, min(end - position, CHUNK), position, position)
            if count == 0:
                break
            position += count
            copied += count
        position = max(position, end)
    os.ftruncate(writing, size)
    return copied


def _copy_attributes(source: str, target: str, status: os.stat_result) -> None:
    """Owner, mode, extended attributes and times, in the order in which none undoes another."""
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    try:
        for name in os.listxattr(source, follow_symlinks=False):
            os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_XATTRS:
            raise
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(target, stat.S_IMODE(status.st_mode))  # noqa: PTH101
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
