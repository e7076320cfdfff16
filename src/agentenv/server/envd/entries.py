"""Entries of a sandbox's files as E2B describes them."""

from __future__ import annotations

import posixpath
import stat
from typing import NamedTuple

from agentenv.guest import files
from agentenv.guest.connection import Connection
from agentenv.guest.errors import AgentFailure
from agentenv.guest.files import Entry
from agentenv.server.envd.wire import filesystem_pb2 as wire

MAX_LINKS = 40
"""How many links in a row are followed, as the kernel does."""

METADATA = "user.e2b."
"""How the names of extended attributes begin that are metadata to E2B's clients."""

_TYPES = {"file": wire.FILE_TYPE_FILE, "dir": wire.FILE_TYPE_DIRECTORY}
_FORMATS = {
    "file": stat.S_IFREG,
    "dir": stat.S_IFDIR,
    "symlink": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
    "socket": stat.S_IFSOCK,
    "char": stat.S_IFCHR,
    "block": stat.S_IFBLK,
}
# Go's os.FileMode, in whose words E2B writes permissions: https://pkg.go.dev/io/fs#FileMode.String
_MARKS = {"dir": "d", "symlink": "L", "fifo": "p", "socket": "S", "char": "Dc", "block": "D"}
_BITS = ((stat.S_ISUID, "u"), (stat.S_ISGID, "g"), (stat.S_ISVTX, "t"))


class _Target(NamedTuple):
    """Where a link leads in the end; without an entry where that is not there."""

    path: str
    entry: Entry | None


async def look_up(connection: Connection, path: str) -> wire.EntryInfo:
    """What is at a path. Raises `AgentFailure`."""
    return await describe(connection, await files.stat(connection, path, follow=False, attributes=METADATA), path)


async def describe(connection: Connection, entry: Entry, path: str) -> wire.EntryInfo:
    """An entry as E2B shows it: of a link the type and mode are its target's, all else its own."""
    target = await _follow(connection, path) if entry.type == "symlink" else None
    shown = entry if target is None else target.entry
    info = wire.EntryInfo(
        name=posixpath.basename(path.rstrip("/")) or "/",
        type=_TYPES.get(shown.type, wire.FILE_TYPE_UNSPECIFIED) if shown else wire.FILE_TYPE_UNSPECIFIED,
        path=path,
        size=entry.size,
        mode=stat.S_IMODE(shown.mode) & 0o777 if shown else 0,
        permissions=permissions(entry),
        owner=entry.user or str(entry.uid),
        group=entry.group or str(entry.gid),
        symlink_target=target.path if target else None,
        metadata=entry.attributes,
        is_symlink=target is not None,
    )
    info.modified_time.FromNanoseconds(round(entry.mtime * 1e9))
    return info


def permissions(entry: Entry) -> str:
    """The permissions of an entry in Go's notation, such as `drwxr-xr-x` or `dtrwxrwxrwx`."""
    marks = _MARKS.get(entry.type, "") + "".join(letter for bit, letter in _BITS if entry.mode & bit)
    return (marks or "-") + stat.filemode(_FORMATS[entry.type] | (entry.mode & 0o777))[1:]


async def _follow(connection: Connection, path: str) -> _Target:
    """The end of a chain of links. Links among the directories above it the sandbox follows by itself."""
    here = path
    for _ in range(MAX_LINKS):
        try:
            entry = await files.stat(connection, here, follow=False)
        except AgentFailure:
            break
        if entry.type != "symlink" or entry.target is None:
            return _Target(here, entry)
        here = posixpath.normpath(posixpath.join(posixpath.dirname(here), entry.target))
    return _Target(path, None)
