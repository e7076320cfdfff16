"""The few file operations that images and snapshots share: durable small files, and trees that always can be removed."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from agentenv.errors import InfrastructureError
from agentenv.monitoring.files import write_whole

FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL = 0x80086601, 0x40086602, 0x00020000
"""linux/fs.h; see ioctl_iflags(2)."""

_SHALLOW = 6
"""Levels of a sandbox's directory: the deepest are what the kernel writes below `work`."""


def write_durably(path: Path, content: Mapping[str, object]) -> None:
    """Writes `content` as JSON so that after a power cut either all of it or nothing of it is at `path`."""
    write_whole(path, json.dumps(content, indent=1, sort_keys=True).encode(), durable=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the names in directory `path` durable."""
    _fsync(os.fspath(path), os.O_RDONLY | os.O_DIRECTORY)


def sync_filesystem(path: Path) -> None:
    """Writes everything of the file system that holds `path` to its disk (syncfs(2), which also reports a failed write)."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise InfrastructureError(
                f"the disk under {path} did not take the data: {os.strerror(number)}.", remedy="Check the disk's health."
            )
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Writes the tree at `path` to its disk: its files and names, and nothing of what others have written there.

    On a busy disk that takes a small part of the time that `sync_filesystem` takes. Raises OSError.
    """
    directories = []
    for folder, _, names in os.walk(path):
        directories.append(folder)
        for name in names:
            file = f"{folder}/{name}"
            if stat.S_ISREG(os.lstat(file).st_mode):
                _fsync(file, os.O_RDONLY | os.O_NOFOLLOW)
    for folder in reversed(directories):
        _fsync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def spread_children(path: Path) -> None:
    """Asks the file system to put what is made in directory `path` in different places of the disk.

    ext4 without a journal does not use an inode again for a minute or more after its removal, and looks at each that it skips; where many
    short-lived trees come and go in one place, making a directory soon takes ten times as long. Other file systems need no such hint.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = struct.unpack("l", fcntl.ioctl(descriptor, FS_IOC_GETFLAGS, bytes(8)))[0]
        fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, struct.pack("l", flags | FS_TOPDIR_FL))
    except OSError:
        return
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Removes the tree at `path` if there is one, directories without permissions (overlay work directories) included.

    Raises `InfrastructureError` when something of it cannot be removed, and names it.
    """

    def open_up(function: Callable[..., object], name: str, error: BaseException) -> None:
        if isinstance(error, FileNotFoundError):
            return
        if not isinstance(error, PermissionError):
            raise error
        for directory in (Path(name).parent, Path(name)):
            if stat.S_ISDIR(directory.lstat().st_mode):
                directory.chmod(0o700)
        if Path(name).is_dir() and not Path(name).is_symlink():
            remove_tree(Path(name))
        else:
            Path(name).unlink()

    if _remove_shallow(os.fspath(path), _SHALLOW):
        return
    try:
        # A real error inside `open_up` ends the walk; those that it mends do not.
        shutil.rmtree(path, onerror=lambda function, name, info: open_up(function, name, info[1]))
    except OSError as error:
        raise InfrastructureError(
            f"{error.filename} cannot be removed: {error.strerror}.", remedy="Remove it by hand, as its owner."
        ) from error


def _remove_shallow(path: str, depth: int) -> bool:
    """Removes a tree that is hardly more than empty directories, of at most `depth` levels, by one system call for most of them.

    False when something of it is left: then `shutil.rmtree`, which takes eight for each, has the rest.
    """
    try:
        os.rmdir(path)  # noqa: PTH106 - plain strings: every sandbox that ends leaves some two dozen directories
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or depth == 0:
            return error.errno == errno.ENOENT
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)  # noqa: PTH108
                elif not _remove_shallow(entry.path, depth - 1):
                    return False
        os.rmdir(path)  # noqa: PTH106
    except OSError:
        return False
    return True


def allocated_bytes(path: Path) -> int:
    """Disk space that the tree at `path` takes, in bytes: holes do not count, and files with several names count once.

    Names that vanish meanwhile are left out, each by itself, so that a busy writer hides nothing else; so is what lies in a directory
    that this user may not read (one that a sandbox without root made for another of its users).
    """
    total, seen = 0, set[tuple[int, int]]()
    pending = [os.fspath(path)]
    while pending:
        for entry, status in _entries(pending.pop()):
            if stat.S_ISDIR(status.st_mode):
                pending.append(entry)
            elif status.st_nlink > 1:
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
            total += status.st_blocks * 512
    return total


def _entries(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = os.scandir(directory)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    with entries:
        for entry in entries:
            try:
                yield entry.path, entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
