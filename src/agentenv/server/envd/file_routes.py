"""/files: the content of a sandbox's files, down and up, piece by piece whatever their size."""

from __future__ import annotations

import json
import mimetypes
import posixpath
from collections.abc import AsyncIterator, Mapping
from urllib.parse import quote

from agentenv.guest import files
from agentenv.guest.errors import AgentFailure
from agentenv.guest.files import Entry
from agentenv.guest.stream import Incoming
from agentenv.server.envd.connect import Code, ConnectError
from agentenv.server.envd.connect.exchange import Exchange
from agentenv.server.envd.encoding import packed, takes_plain, unpacked, wants_gzip
from agentenv.server.envd.entries import METADATA
from agentenv.server.envd.metadata import metadata_of
from agentenv.server.envd.multipart import MultipartReader, boundary_of
from agentenv.server.envd.paths import resolve
from agentenv.server.envd.ranges import wanted
from agentenv.server.envd.refusal import Refused
from agentenv.server.envd.session import Session
from agentenv.server.envd.users import User


class FileRoutes:
    """GET and POST of /files for one sandbox; `Refused`, `ConnectError` and what the sandbox raises are the caller's to answer."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def download(self, exchange: Exchange, query: dict[str, str]) -> None:
        """Sends a file, or one range of it, plain or gzipped."""
        path = resolve(query.get("path", ""), await self._user(query), self._session.default_workdir)
        entry = await self._require_file(path)
        accepted, part = exchange.headers.get("accept-encoding", ""), exchange.headers.get("range")
        gzip = wants_gzip(accepted) and not part
        if not gzip and not takes_plain(accepted):
            raise Refused(406, "no encoding that the client accepts can be sent; there are identity, and for whole files gzip")
        name = posixpath.basename(path)
        headers = [
            ("content-type", mimetypes.guess_type(name)[0] or "application/octet-stream"),
            ("content-disposition", f"inline; filename*=UTF-8''{quote(name, errors='surrogateescape')}"),
            ("vary", "Accept-Encoding"),
            ("accept-ranges", "bytes"),
            # A page that a sandbox holds is no page of the server's, also where the link leads to the server's own host name.
            ("content-security-policy", "sandbox"),
            ("x-content-type-options", "nosniff"),
        ]
        if gzip:
            await self._send_packed(exchange, path, headers)
        else:
            await self._send_plain(exchange, path, entry, headers, part)

    async def upload(self, exchange: Exchange, query: dict[str, str]) -> None:
        """Takes one file as it is, or those of a form, and answers with what was written."""
        metadata = metadata_of(exchange.headers)
        user = await self._user(query)
        encoding = exchange.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip"):
            raise ConnectError(Code.INVALID_ARGUMENT, f"the Content-Encoding {encoding[:40]!r} is not known; use identity or gzip")
        pieces: AsyncIterator[bytes] = exchange.pieces()
        if encoding == "gzip":
            pieces = unpacked(pieces)
        content_type = exchange.headers.get("content-type", "")
        media = content_type.partition(";")[0].strip().lower()
        if media == "application/octet-stream":
            if "path" not in query:
                raise ConnectError(Code.INVALID_ARGUMENT, "the parameter `path` is missing: a body that is no form does not name its file")
            written = [await self._write(query["path"], user, pieces, metadata)]
        elif media.startswith("multipart/"):
            written = await self._write_form(MultipartReader(boundary_of(content_type), pieces), query.get("path"), user, metadata)
        else:
            raise ConnectError(
                Code.INVALID_ARGUMENT,
                f"the Content-Type {content_type[:80]!r} is not known; use multipart/form-data or application/octet-stream",
            )
        kept = {"metadata": metadata} if metadata else {}
        answer = [{"path": path, "name": posixpath.basename(path), "type": "file", **kept} for path in written]
        await exchange.answer(200, json.dumps(answer).encode(), "application/json")

    async def _write_form(self, form: MultipartReader, only: str | None, user: User, metadata: Mapping[str, str]) -> list[str]:
        """Writes each file of a form to the path `only`, or to its own name."""
        written: list[str] = []
        while (part := await form.next()) is not None:
            if part.name != "file":
                continue
            path = only if only is not None else part.filename
            if path is None:
                raise ConnectError(Code.INVALID_ARGUMENT, "a file of the form has no name, and there is no parameter `path`")
            if resolve(path, user, self._session.default_workdir) in written:
                raise ConnectError(Code.INVALID_ARGUMENT, f"{path} comes twice in one request; its first content was written")
            written.append(await self._write(path, user, form.content(), metadata))
        return written

    async def _write(self, path: str, user: User, pieces: AsyncIterator[bytes], metadata: Mapping[str, str]) -> str:
        """Writes a file, which then belongs to `user`; returns its path. The old content stays until the new one is complete.

        The new one comes without the metadata of the old.
        """
        path = resolve(path, user, self._session.default_workdir)
        connection = self._session.link.connection()
        try:
            old: Entry | None = await files.stat(connection, path)
        except AgentFailure as failure:
            if failure.code not in ("ENOENT", "ENOTDIR"):
                raise
            old = None
        if old is not None and old.type == "dir":
            raise ConnectError(Code.INVALID_ARGUMENT, f"path is a directory: {path}")
        self._session.replaced.note(path, existed=old is not None)
        try:
            await files.write(connection, path, pieces, user=user.name)
            if old is not None and old.uid != user.uid:
                await connection.call("chown", path=path, user=user.name)
            if metadata:
                await files.set_attributes(connection, path, METADATA, metadata)
        except AgentFailure as failure:
            await self._session.link.file_fault(failure, path)
        return path

    async def _user(self, query: dict[str, str]) -> User:
        return await self._session.users.find(query.get("username") or self._session.default_user)

    async def _require_file(self, path: str) -> Entry:
        try:
            entry = await files.stat(self._session.link.connection(), path)
        except AgentFailure as failure:
            if failure.code in ("ENOENT", "ENOTDIR"):
                raise ConnectError(Code.NOT_FOUND, f"path '{path}' does not exist") from failure
            raise
        if entry.type == "dir":
            raise ConnectError(Code.INVALID_ARGUMENT, f"path '{path}' is a directory")
        return entry

    async def _send_packed(self, exchange: Exchange, path: str, headers: list[tuple[str, str]]) -> None:
        stream = files.reader(self._session.link.connection(), path)
        try:
            first = await stream.read()  # what cannot be opened is said before the answer begins
            await exchange.begin(200, ("content-encoding", "gzip"), *headers)
            async for piece in packed(_with_first(first, stream)):
                await exchange.send(piece)
            await exchange.send(b"", last=True)
        finally:
            stream.cancel()

    async def _send_plain(self, exchange: Exchange, path: str, entry: Entry, headers: list[tuple[str, str]], part: str | None) -> None:
        """A file that has a size is sent with it: then a client sees when the rest of it is missing. One of /proc says that it has none."""
        sized = entry.type == "file" and entry.size > 0
        try:
            span = wanted(part, entry.size) if sized else None
        except ValueError as error:
            raise Refused(416, str(error), ("content-range", f"bytes */{entry.size}")) from error
        offset, length = span or ((0, entry.size) if sized else (None, None))
        stream = files.reader(self._session.link.connection(), path, offset=offset, length=length)
        try:
            piece = await stream.read()
            if span is not None:
                headers.append(("content-range", f"bytes {span.offset}-{span.offset + span.length - 1}/{entry.size}"))
            if length is not None:
                headers.append(("content-length", str(length)))
            await exchange.begin(206 if span else 200, *headers)
            while piece and not exchange.gone:
                await exchange.send(piece)
                piece = await stream.read()
            await exchange.send(b"", last=True)
        finally:
            stream.cancel()


async def _with_first(first: bytes, stream: Incoming) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for piece in files.drain(stream):
        yield piece
