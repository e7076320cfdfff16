"""What the sandbox's handle gives back, and the small types that its methods take."""

from __future__ import annotations

import datetime as dt
import enum
import stat
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import IO, NamedTuple

from agentenv.guest.files import Change, Entry
from agentenv.guest.tar import Transfer as Transfer
from agentenv.isolation.contract import OomKill
from agentenv.node.records import SandboxRecord

OutputCallback = Callable[[str], object] | Callable[[str], Awaitable[object]]
"""Called with each piece of text that a command prints, in order; a coroutine function is awaited, so that a slow one slows the command."""

TerminalCallback = Callable[[bytes], object] | Callable[[bytes], Awaitable[object]]
"""Called with each piece of bytes that a terminal shows."""

FileContent = str | bytes | bytearray | memoryview | IO[bytes] | IO[str] | Iterable[bytes] | AsyncIterable[bytes]
"""What a file can be written from."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. A non-zero exit is a result like any other.

    `exit_code` is 128 + the signal for a command that a signal ended, as a shell has it, and `signal` then names it. `wall`, `user` and
    `system` are seconds, `max_rss` bytes; the last three are None for a command in a persistent shell. `dropped` counts bytes of output
    beyond what was kept. `restarted` (persistent shells only) says that the shell ended with this command: the next one starts in
    a fresh shell. `oom_killed` are processes that the kernel ended for want of memory while it ran, though it could go on without
    them: one in the middle of a pipeline, say, or one of another command (not told by virtual machines, nor in a persistent shell).
    """

    stdout: str
    stderr: str
    exit_code: int
    signal: int | None = None
    wall: float = 0.0
    user: float | None = None
    system: float | None = None
    max_rss: int | None = None
    dropped: int = 0
    restarted: bool = False
    oom_killed: tuple[OomKill, ...] = ()


class OutputPiece(NamedTuple):
    """One piece of live output; exactly one of the three is set."""

    stdout: str | None = None
    stderr: str | None = None
    pty: bytes | None = None


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process that runs in the sandbox and was started by the handle's commands or terminals."""

    pid: int
    args: tuple[str, ...]
    cwd: str | None
    user: str | None
    tag: str | None
    pty: bool
    started: dt.datetime


@dataclass(frozen=True, slots=True)
class PtySize:
    """The size of a terminal in characters."""

    rows: int = 24
    cols: int = 80


class FileType(enum.StrEnum):
    """What kind of thing a path is."""

    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    CHAR = "char"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """A file, directory, or whatever else is at a path of the sandbox; `size` in bytes."""

    name: str
    type: FileType
    path: str
    size: int
    mode: int
    permissions: str
    owner: str
    group: str
    modified_time: dt.datetime
    symlink_target: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> EntryInfo:
        """An entry of the protocol as users see it."""
        return cls(
            name=entry.name,
            type=FileType(entry.type),
            path=entry.path,
            size=entry.size,
            mode=stat.S_IMODE(entry.mode),
            permissions=stat.filemode(entry.mode)[1:],
            owner=entry.user or str(entry.uid),
            group=entry.group or str(entry.gid),
            modified_time=dt.datetime.fromtimestamp(entry.mtime, dt.UTC),
            symlink_target=entry.target,
        )


@dataclass(frozen=True, slots=True)
class WriteInfo:
    """A file that was written; `size` in bytes."""

    name: str
    path: str
    size: int
    type: FileType = FileType.FILE


@dataclass(frozen=True, slots=True)
class WriteEntry:
    """One file to write."""

    path: str
    data: FileContent


class FilesystemEventType(enum.StrEnum):
    """What happened to a watched path; OVERFLOW: some changes were lost."""

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class FilesystemEvent:
    """A change below a watched directory; `name` is the path relative to it."""

    type: FilesystemEventType
    name: str

    @classmethod
    def of(cls, change: Change, root: str) -> FilesystemEvent:
        """A change of the protocol as users see it."""
        prefix = root.rstrip("/") + "/"
        return cls(FilesystemEventType(change.type), change.path.removeprefix(prefix))


WatchCallback = Callable[[FilesystemEvent], object] | Callable[[FilesystemEvent], Awaitable[object]]
"""Called with each change of a watched directory, in order."""


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A sandbox as its owner's journal tells it."""

    id: str
    state: str
    image: str
    backend: str
    generation: int
    started_at: dt.datetime
    end_at: dt.datetime | None
    owner_pid: int
    metadata: dict[str, str]

    @classmethod
    def of(cls, record: SandboxRecord) -> SandboxInfo:
        """A record of the journal as users see it."""
        return cls(
            id=record.id,
            state=record.state,
            image=record.image,
            backend=record.backend,
            generation=record.generation,
            started_at=dt.datetime.fromtimestamp(record.created, dt.UTC),
            end_at=None if record.expires is None else dt.datetime.fromtimestamp(record.expires, dt.UTC),
            owner_pid=record.owner_pid,
            metadata=dict(record.metadata),
        )
