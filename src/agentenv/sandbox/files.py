"""Files of a sandbox."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar, overload

from agentenv.errors import InfrastructureError, SandboxFileError
from agentenv.guest import files as guest_files
from agentenv.guest import tar
from agentenv.guest.connection import Connection
from agentenv.guest.errors import AgentFailure
from agentenv.sandbox.link import Link
from agentenv.sandbox.results import EntryInfo, FileContent, Transfer, WatchCallback, WriteEntry, WriteInfo
from agentenv.sandbox.watch import AsyncWatchHandle

Item = TypeVar("Item")
_PIECE = 1 << 20
_PARALLEL_WRITES = 16


class AsyncFiles:
    """`sandbox.files`.

    Paths are the sandbox's; failures are `SandboxFileError` with an errno's name in `code`, a full disk `StorageFull`.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    @overload
    async def read(self, path: str, format: Literal["text"] = "text", *, user: str | int | None = None) -> str: ...

    @overload
    async def read(self, path: str, format: Literal["bytes"], *, user: str | int | None = None) -> bytes: ...

    @overload
    async def read(self, path: str, format: Literal["stream"], *, user: str | int | None = None) -> AsyncIterator[bytes]: ...

    async def read(
        self, path: str, format: Literal["text", "bytes", "stream"] = "text", *, user: str | int | None = None
    ) -> str | bytes | AsyncIterator[bytes]:
        """A file's content: as text (UTF-8; what is no UTF-8 is replaced), as bytes, or as a stream of pieces, read as it is consumed."""
        if format == "stream":
            return self._stream(path, user)
        if format not in ("text", "bytes"):
            raise ValueError(f"format is {format!r}; it is 'text', 'bytes' or 'stream'")
        async with self._faults(path) as connection:
            content = await guest_files.read(connection, path, user=user)
        return content.decode(errors="replace") if format == "text" else content

    async def write(
        self,
        path: str,
        data: FileContent,
        *,
        user: str | int | None = None,
        mode: int | None = None,
        append: bool = False,
    ) -> WriteInfo:
        """Writes a file from text, bytes, an open file or an iterator of bytes; missing directories are made.

        The old content is replaced at once when all has come, so that a broken-off write leaves it as it was. `mode`: permissions
        of a new file.
        """
        source = bytes(data) if isinstance(data, bytearray | memoryview) else data.encode() if isinstance(data, str) else data
        async with self._faults(path) as connection:
            size = await guest_files.write(
                connection, path, source if isinstance(source, bytes) else _pieces(source), user=user, mode=mode, append=append
            )
        return WriteInfo(PurePosixPath(path).name, path, size)

    async def write_files(self, files: Iterable[WriteEntry | tuple[str, FileContent]], *, user: str | int | None = None) -> list[WriteInfo]:
        """Writes several files, several at a time; the first failure stops the rest."""
        entries = [entry if isinstance(entry, WriteEntry) else WriteEntry(*entry) for entry in files]
        room = asyncio.Semaphore(_PARALLEL_WRITES)

        async def one(entry: WriteEntry) -> WriteInfo:
            async with room:
                return await self.write(entry.path, entry.data, user=user)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(entry)) for entry in entries]
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        return [task.result() for task in tasks]

    async def list(self, path: str, depth: int = 1) -> list[EntryInfo]:
        """What is in a directory, down to `depth` levels."""
        if depth < 1:
            raise ValueError(f"depth is {depth}; it is at least 1")
        async with self._faults(path) as connection:
            return [EntryInfo.of(entry) for entry in await guest_files.list_directory(connection, path, depth=depth)]

    async def exists(self, path: str) -> bool:
        """Whether there is anything at a path (a link that points nowhere is something)."""
        try:
            await self.get_info(path, follow=False)
        except SandboxFileError as error:
            if error.code in ("ENOENT", "ENOTDIR"):
                return False
            raise
        return True

    async def get_info(self, path: str, *, follow: bool = False) -> EntryInfo:
        """What is at a path; with `follow`, what a link there points to."""
        async with self._faults(path) as connection:
            return EntryInfo.of(await guest_files.stat(connection, path, follow=follow))

    async def make_dir(self, path: str, *, user: str | int | None = None, mode: int | None = None) -> bool:
        """Makes a directory and those above it; False when it was there already."""
        async with self._faults(path) as connection:
            return await guest_files.make_directory(connection, path, mode=mode, user=user)

    async def rename(self, old_path: str, new_path: str) -> EntryInfo:
        """Renames or moves; what is at `new_path` is replaced as by rename(2). Returns what is there now."""
        async with self._faults(old_path) as connection:
            await connection.call("rename", path=old_path, to=new_path)
        return await self.get_info(new_path)

    async def remove(self, path: str, *, missing_ok: bool = False) -> None:
        """Removes a file, or a directory with all that is in it."""
        async with self._faults(path) as connection:
            await connection.call("remove", path=path, recursive=True, missing_ok=missing_ok)

    async def chmod(self, path: str, mode: int) -> None:
        """Sets the permissions."""
        async with self._faults(path) as connection:
            await connection.call("chmod", path=path, mode=mode)

    async def chown(self, path: str, user: str | int) -> None:
        """Sets the owner."""
        async with self._faults(path) as connection:
            await connection.call("chown", path=path, user=user)

    async def symlink(self, path: str, target: str) -> None:
        """Makes a symbolic link at `path` that points to `target`."""
        async with self._faults(path) as connection:
            await connection.call("symlink", path=path, target=target)

    async def watch_dir(self, path: str, on_event: WatchCallback | None = None, *, recursive: bool = False) -> AsyncWatchHandle:
        """Watches a directory. Changes go to `on_event` (a plain or coroutine function), or else are read by iterating over the handle."""
        async with self._faults(path) as connection:
            watch = await guest_files.watch(connection, path, recursive=recursive)
        return AsyncWatchHandle(self._link, watch, path, on_event)

    async def upload_dir(
        self, local_path: str | Path, path: str, *, exclude: Sequence[str] = (), user: str | int | None = None
    ) -> Transfer:
        """Copies the content of a directory of this machine into one of the sandbox, which is made if missing.

        `exclude`: shell patterns that a name, or a path relative to `local_path`, must not match (`["*.pyc", ".git"]`).
        """
        async with self._faults(path) as connection:
            return await tar.upload_directory(connection, Path(local_path), path, exclude=exclude, user=user)

    async def download_dir(
        self, path: str, local_path: str | Path, *, exclude: Sequence[str] = (), max_bytes: int | None = None
    ) -> Transfer:
        """Copies the content of a directory of the sandbox into one of this machine, which is made if missing.

        Nothing outside `local_path` can be touched, whatever the sandbox sends: devices and links that would leave it are left out
        and named in the result. `max_bytes` bounds the content; more raises `SandboxFileError` (EFBIG).
        """
        async with self._faults(path) as connection:
            return await tar.download_directory(connection, path, Path(local_path), exclude=exclude, max_bytes=max_bytes)

    async def _stream(self, path: str, user: str | int | None) -> AsyncIterator[bytes]:
        async with self._faults(path) as connection:
            stream = guest_files.reader(connection, path, user=user)
            try:
                async for piece in guest_files.drain(stream):
                    yield piece
            finally:
                stream.cancel()

    @asynccontextmanager
    async def _faults(self, path: str) -> AsyncIterator[Connection]:
        """The connection; failures inside become what they mean to the user."""
        try:
            yield self._link.connection()
        except AgentFailure as failure:
            await self._link.file_fault(failure, path)
        except InfrastructureError as error:
            raise await self._link.explain(error) from error


async def _pieces(source: Any) -> AsyncIterator[bytes]:
    """Anything that content can come from, piece by piece; what may block is read in a thread."""
    if isinstance(source, AsyncIterable):
        async for piece in source:
            yield _as_bytes(piece)
    elif hasattr(source, "read"):
        read = source.read if isinstance(source, io.BytesIO | io.StringIO) else None
        while piece := read(_PIECE) if read else await asyncio.to_thread(source.read, _PIECE):
            yield _as_bytes(piece)
    elif isinstance(source, Iterable):
        iterator, end = iter(source), object()
        while (piece := await asyncio.to_thread(next, iterator, end)) is not end:
            yield _as_bytes(piece)
    else:
        raise TypeError(f"a file cannot be written from {type(source).__name__}; give text, bytes, an open file or an iterator of bytes")


def _as_bytes(piece: object) -> bytes:
    if isinstance(piece, str):
        return piece.encode()
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    raise TypeError(f"a file cannot be written from an iterator of {type(piece).__name__}; it must give bytes")
