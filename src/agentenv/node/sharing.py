"""Finds what two layers have in common, so that the same content lies on the disk once. For layers at rest, never for a live upper."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

BLOCK = 1 << 20


def layer_digest(layer: Path) -> str:
    """The SHA-256 of all that a layer means: names, kinds, owners, modes, times, attributes, content, and which names are one file."""
    hasher = hashlib.sha256()
    links: dict[tuple[int, int], int] = {}
    for number, (path, name) in enumerate(_walk(os.fspath(layer), "")):
        status = os.lstat(path)
        same = links.setdefault((status.st_dev, status.st_ino), number)
        facts = (name, status.st_mode, status.st_uid, status.st_gid, status.st_rdev, status.st_mtime_ns, same, _attributes(path))
        hasher.update(repr(facts).encode("utf-8", "surrogateescape"))
        if stat.S_ISLNK(status.st_mode):
            hasher.update(os.fsencode(os.readlink(path)))  # noqa: PTH115
        elif stat.S_ISREG(status.st_mode) and same == number:
            hasher.update(status.st_size.to_bytes(8, "big"))
            _hash_content(hasher, path)
    return hasher.hexdigest()


def share_unchanged(layer: Path, earlier: Path) -> int:
    """Makes each file of `layer` that `earlier` has too, equal in all, another name of that one; returns the bytes this saves."""
    saved = 0
    times: dict[str, tuple[int, int]] = {}
    for path, name in _walk(os.fspath(layer), ""):
        other = f"{earlier}/{name}"
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or not status.st_size or not _same_file(path, status, other):
            continue
        folder = os.path.dirname(path)  # noqa: PTH120
        if folder not in times:
            before = os.stat(folder)  # noqa: PTH116
            times[folder] = (before.st_atime_ns, before.st_mtime_ns)
        spare = f"{path}.{secrets.token_hex(4)}"
        os.link(other, spare, follow_symlinks=False)
        os.rename(spare, path)  # noqa: PTH104
        saved += status.st_blocks * 512
    for folder, known in times.items():
        os.utime(folder, ns=known)
    return saved


def _walk(directory: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Every entry below `directory` with its path and its name relative to the top; a directory before what is in it, else by name."""
    with os.scandir(directory) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        yield entry.path, f"{prefix}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, f"{prefix}{entry.name}/")


def _attributes(path: str) -> tuple[tuple[str, bytes], ...]:
    try:
        return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in sorted(os.listxattr(path, follow_symlinks=False)))
    except OSError:
        return ()


def _same_file(path: str, status: os.stat_result, other: str) -> bool:
    try:
        known = os.lstat(other)
    except (FileNotFoundError, NotADirectoryError):
        return False

    def facts(of: os.stat_result) -> tuple[int, ...]:
        return (of.st_mode, of.st_uid, of.st_gid, of.st_size, of.st_mtime_ns)

    if facts(status) != facts(known) or known.st_ino == status.st_ino or _attributes(path) != _attributes(other):
        return False
    # Two names of one file must stay two names of one file, which takes every name of both to be in these two layers.
    return status.st_nlink == 1 and _same_content(path, other)


def _same_content(path: str, other: str) -> bool:
    with open(path, "rb") as left, open(other, "rb") as right:  # noqa: PTH123
        while block := left.read(BLOCK):
            if block != right.read(BLOCK):
                return False
        return not right.read(1)


def _hash_content(hasher: hashlib._Hash, path: str) -> None:
    with open(path, "rb") as file:  # noqa: PTH123
        while block := file.read(BLOCK):
            hasher.update(block)
