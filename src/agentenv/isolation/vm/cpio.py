"""The archive format of an initramfs: cpio "newc" (Linux, Documentation/driver-api/early-userspace/buffer-format.rst)."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

MAGIC = b"070701"
TRAILER = "TRAILER!!!"
ALIGNMENT = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: `mode` with its type bits; `device` (major, minor) for device files. Everything belongs to root and has no time."""

    name: str
    mode: int
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def directory(name: str, mode: int = 0o755) -> Entry:
    """A directory."""
    return Entry(name, stat.S_IFDIR | mode)


def file(name: str, content: bytes, mode: int = 0o644) -> Entry:
    """A plain file."""
    return Entry(name, stat.S_IFREG | mode, content)


def character_device(name: str, major: int, minor: int, mode: int = 0o600) -> Entry:
    """A device file; nobody needs a privilege to write one into an archive."""
    return Entry(name, stat.S_IFCHR | mode, device=(major, minor))


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive of `entries` in their order: the same entries always give the same bytes."""
    packed = [_record(entry, number) for number, entry in enumerate(entries, start=1)]
    return b"".join([*packed, _record(Entry(TRAILER, 0), 0)])


def _record(entry: Entry, inode: int) -> bytes:
    name = entry.name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (inode, entry.mode, 0, 0, links, 0, len(entry.content), 0, 0, *entry.device, len(name), 0)
    header = MAGIC + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name) + _padded(entry.content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)
