"""Whole directories in and out of a sandbox, as tar streams.

What comes out of a sandbox is untrusted: members are created relative to directory descriptors that are never reached through a symlink, so
that no name, link or race in an archive can touch anything outside the destination.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fnmatch
import io
import os
import stat
import tarfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from agentenv.errors import SandboxFileError
from agentenv.guest.connection import Connection
from agentenv.guest.errors import AgentFailure
from agentenv.guest.files import READ_AHEAD
from agentenv.guest.stream import Incoming, Stream

CHUNK = 256 << 10
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a copy of a directory moved: entries, bytes of file content, and the names left out because they must not exist there."""

    entries: int
    size: int
    skipped: tuple[str, ...] = ()


class _Bridge(io.RawIOBase):
    """A file for `tarfile`, in a worker thread, whose other end is a stream in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: Future[Any] | None = None
        self._stopped = False

    def stop(self) -> None:
        """From the loop: makes the thread's present and every later call fail, so that it ends."""
        self._stopped = True
        if self._pending is not None:
            self._pending.cancel()

    def _await(self, work: Callable[[], Awaitable[Value]]) -> Value:
        async def run() -> Value:
            return await work()

        pending: Future[Value] = asyncio.run_coroutine_threadsafe(run(), self._loop)
        self._pending = pending
        if self._stopped:
            pending.cancel()
        try:
            return pending.result()
        except CancelledError:
            raise BrokenPipeError("the transfer was stopped") from None


class _Sink(_Bridge):
    def __init__(self, loop: asyncio.AbstractEventLoop, stream: Stream) -> None:
        super().__init__(loop)
        self._stream = stream

    def write(self, data: Any) -> int:
        # tarfile reuses nothing it has written, but the stream may still hold the piece when this returns: hence bytes.
        piece = bytes(data)
        self._await(lambda: self._stream.send(piece))
        if self._stream.over:
            raise BrokenPipeError("the sandbox ended the transfer")
        return len(piece)


class _Source(_Bridge):
    def __init__(self, loop: asyncio.AbstractEventLoop, stream: Incoming) -> None:
        super().__init__(loop)
        self._stream = stream
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        if not self._rest:
            self._rest = self._await(self._stream.read)
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


async def upload_directory(
    connection: Connection, local: Path, remote: str, *, exclude: Sequence[str] = (), user: str | int | None = None
) -> Transfer:
    """Copies the content of a directory of the host into one of the sandbox, which is made if missing.

    `exclude` are shell patterns, matched against each name and against each path relative to `local`.
    Raises `AgentFailure`, `NotADirectoryError`.
    """
    children = await asyncio.to_thread(_children, local)
    stream = Stream("tar_in")
    connection.start(stream, "tar_in", {"path": remote, "user": user})
    sink = _Sink(asyncio.get_running_loop(), stream)
    try:
        packed = asyncio.ensure_future(asyncio.to_thread(_pack, children, sink, tuple(exclude)))
        transfer = await _finish_thread(packed, sink, stream)
        stream.end()
        await stream.result()
        return transfer
    finally:
        stream.cancel()


async def download_directory(
    connection: Connection, remote: str, local: Path, *, exclude: Sequence[str] = (), max_bytes: int | None = None
) -> Transfer:
    """Copies the content of a directory of the sandbox into one of the host, which is made if missing.

    Devices, and links that would leave `local`, are skipped and named. Raises `AgentFailure`, and `SandboxFileError` (EFBIG) when the
    content is more than `max_bytes`.
    """
    made = not await asyncio.to_thread(local.exists)
    await asyncio.to_thread(local.mkdir, parents=True, exist_ok=True)
    stream = Incoming("tar_out")
    connection.start(stream, "tar_out", {"path": remote})
    stream.widen(READ_AHEAD)
    source = _Source(asyncio.get_running_loop(), stream)
    try:
        unpacked = asyncio.ensure_future(asyncio.to_thread(_unpack, source, local, tuple(exclude), max_bytes, remote))
        transfer = await _finish_thread(unpacked, source, stream)
        while await stream.read():
            pass
        return transfer
    except AgentFailure:
        if made:
            with contextlib.suppress(OSError):  # not empty: what had come stays
                await asyncio.to_thread(local.rmdir)
        raise
    finally:
        stream.cancel()


async def send_archive(
    connection: Connection, write: Callable[[BinaryIO], Value], remote: str, *, user: str | int | None = None, owners: bool = False
) -> Value:
    """Unpacks in a directory of the sandbox what `write`, in a thread, writes as a tar archive; returns what `write` does.

    What is unpacked belongs to `user`, or with `owners` to the numeric owners that the archive names. Raises `AgentFailure`.
    """
    stream = Stream("tar_in")
    connection.start(stream, "tar_in", {"path": remote, "user": user, "owners": owners or None})
    sink = _Sink(asyncio.get_running_loop(), stream)
    try:
        value = await _finish_thread(asyncio.ensure_future(asyncio.to_thread(write, cast("BinaryIO", sink))), sink, stream)
        stream.end()
        await stream.result()
        return value
    finally:
        stream.cancel()


async def receive_archive(connection: Connection, remote: str, read: Callable[[BinaryIO], Value]) -> Value:
    """Hands the tar archive of a file or directory of the sandbox to `read`, in a thread; returns what `read` does.

    What comes is untrusted. `read` takes all of it. Raises `AgentFailure`.
    """
    stream = Incoming("tar_out")
    connection.start(stream, "tar_out", {"path": remote})
    stream.widen(READ_AHEAD)
    source = _Source(asyncio.get_running_loop(), stream)
    try:
        value = await _finish_thread(asyncio.ensure_future(asyncio.to_thread(read, cast("BinaryIO", source))), source, stream)
        while await stream.read():
            pass
        return value
    finally:
        stream.cancel()


async def _finish_thread(work: asyncio.Future[Value], bridge: _Bridge, stream: Stream) -> Value:
    """Waits for the thread. Where it failed because the sandbox ended the operation, the sandbox's reason is the one to tell."""
    try:
        return await asyncio.shield(work)
    except (OSError, tarfile.TarError):
        if stream.over:
            await stream.result()
        stream.cancel()
        raise
    except asyncio.CancelledError:
        stream.cancel()
        raise
    finally:
        bridge.stop()
        with contextlib.suppress(OSError, tarfile.TarError, SandboxFileError, asyncio.CancelledError):
            await work


def excluded(name: str, patterns: Sequence[str]) -> bool:
    """Whether a relative path, or one of its parts, matches a pattern."""
    return any(fnmatch.fnmatchcase(part, pattern) for pattern in patterns for part in (name, *name.split("/")))


def _children(local: Path) -> list[Path]:
    if not local.is_dir():
        raise NotADirectoryError(f"{local} is no directory of this machine; upload_dir copies the content of one")
    return sorted(local.iterdir())


def _pack(children: list[Path], sink: _Sink, exclude: Sequence[str]) -> Transfer:
    entries = size = 0
    skipped: list[str] = []

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal entries, size
        if member.name and excluded(member.name, exclude):
            return None
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            skipped.append(member.name)
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        entries += 1
        size += member.size
        return member

    with tarfile.open(mode="w|", fileobj=cast("BinaryIO", sink), format=tarfile.PAX_FORMAT, bufsize=CHUNK) as archive:
        for child in children:
            archive.add(child, arcname=child.name, filter=wanted)
    return Transfer(entries, size, tuple(skipped))


def _unpack(source: _Source, local: Path, exclude: Sequence[str], max_bytes: int | None, remote: str) -> Transfer:
    entries = size = 0
    skipped: list[str] = []
    root = os.open(local, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with tarfile.open(mode="r|", fileobj=cast("BinaryIO", source), bufsize=CHUNK) as archive:
            for member in archive:
                parts = [part for part in member.name.split("/") if part not in ("", ".")]
                if not parts or excluded("/".join(parts), exclude):
                    continue
                size += member.size if member.isreg() else 0
                if max_bytes is not None and size > max_bytes:
                    raise SandboxFileError("EFBIG", remote, f"its content is more than the {max_bytes} bytes allowed")
                if ".." in parts or not _create(archive, member, root, parts):
                    skipped.append(member.name)
                else:
                    entries += 1
    finally:
        os.close(root)
    return Transfer(entries, size, tuple(skipped))


@contextlib.contextmanager
def _directory(root: int, parts: Sequence[str]) -> Iterator[int]:
    """A descriptor of a directory below `root`, made as needed, no part of whose path is a symlink."""
    current = os.dup(root)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=current)
            following = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def _create(archive: tarfile.TarFile, member: tarfile.TarInfo, root: int, parts: list[str]) -> bool:
    """Makes one member; False for what must not be made here."""
    try:
        with _directory(root, parts[:-1]) as parent:
            return _create_in(archive, member, root, parent, parts)
    except (NotADirectoryError, IsADirectoryError):
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:  # a parent is a symlink
            return False
        raise


def _create_in(archive: tarfile.TarFile, member: tarfile.TarInfo, root: int, parent: int, parts: list[str]) -> bool:
    name = parts[-1]
    if member.isdir():
        with _directory(parent, [name]) as made:
            os.fchmod(made, stat.S_IMODE(member.mode) & 0o777 | 0o700)
        return True
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
    if member.isreg():
        _write(archive, member, parent, name)
    elif member.issym() and _stays_inside(parts[:-1], member.linkname):
        os.symlink(member.linkname, name, dir_fd=parent)
    elif member.islnk() and _stays_inside((), member.linkname):
        target = [part for part in member.linkname.split("/") if part not in ("", ".")]
        with _directory(root, target[:-1]) as there:
            os.link(target[-1], name, src_dir_fd=there, dst_dir_fd=parent, follow_symlinks=False)
    else:
        return False
    return True


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str) -> None:
    content = archive.extractfile(member)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "wb") as file:
        while content is not None and (piece := content.read(CHUNK)):
            file.write(piece)
        os.fchmod(file.fileno(), stat.S_IMODE(member.mode) & 0o777)
        os.utime(file.fileno(), (member.mtime, member.mtime))


def _stays_inside(parents: Sequence[str], target: str) -> bool:
    """Whether a link at `parents` to `target` ends below the top, read as text."""
    if not target or target.startswith("/"):
        return False
    depth = len(parents)
    for part in target.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return False
    return depth > 0
