"""A form of several files (multipart/form-data, RFC 7578) read as it comes, so that a file of any size takes no memory."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from agentenv.server.envd.connect import Code, ConnectError

MAX_PARTS = 10_000
"""Parts of one form that are taken."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a part of a form says of itself: the field that it fills, and the file's name where it is one."""

    name: str
    filename: str | None


@dataclass(slots=True)
class _Headers:
    """The headers of the part that is being read."""

    fields: dict[str, bytes] = field(default_factory=dict)
    name: bytes = b""
    value: bytes = b""


class MultipartReader:
    """Gives the parts of a form one after the other. `boundary` is that of the Content-Type, `pieces` the body."""

    def __init__(self, boundary: bytes, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._found: deque[Part | bytes | None] = deque()
        self._headers = _Headers()
        self._parts = 0
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
        )

    async def next(self) -> Part | None:
        """The next part, what is left of the one before is skipped; None at the end. Raises `ConnectError` for what is no such form."""
        while True:
            item = await self._next_item()
            if isinstance(item, Part):
                return item
            if item is None and self._ended and not self._found:
                return None

    async def content(self) -> AsyncIterator[bytes]:
        """What is in the part that `next` gave last."""
        while (item := await self._next_item()) is not None:
            if isinstance(item, bytes):
                yield item

    async def _next_item(self) -> Part | bytes | None:
        """A part begins, content of it, or it is over (None)."""
        while not self._found:
            if self._ended:
                return None
            try:
                self._parser.write(await anext(self._pieces))
            except StopAsyncIteration as end:
                raise ConnectError(Code.INVALID_ARGUMENT, "the form ends before its last boundary") from end
            except MultipartParseError as error:
                raise ConnectError(Code.INVALID_ARGUMENT, f"the body is no multipart/form-data: {error}") from error
        return self._found.popleft()

    def _begin(self) -> None:
        self._headers = _Headers()
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise MultipartParseError(f"it has more than {MAX_PARTS} parts")

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._headers.name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._headers.value += data[start:end]

    def _header_end(self) -> None:
        self._headers.fields[self._headers.name.decode("latin-1").lower()] = self._headers.value
        self._headers.name = self._headers.value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.fields.get("content-disposition", b""))
        filename = options.get(b"filename")
        name = options.get(b"name", b"").decode(errors="replace")
        self._found.append(Part(name, None if filename is None else filename.decode(errors="surrogateescape")))

    def _data(self, data: bytes, start: int, end: int) -> None:
        if end > start:
            self._found.append(data[start:end])

    def _part_end(self) -> None:
        self._found.append(None)

    def _end(self) -> None:
        self._ended = True


def boundary_of(content_type: str) -> bytes:
    """The boundary that a Content-Type names. Raises `ConnectError` when it names none that can be used."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= 70:
        raise ConnectError(Code.INVALID_ARGUMENT, "the Content-Type of a form names its boundary, of at most 70 characters")
    return boundary
