"""Which part of a file a request wants (RFC 9110, 14): one range of bytes."""

from __future__ import annotations

import re
from typing import NamedTuple

_RANGE = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)


class Span(NamedTuple):
    """A part of a file in bytes."""

    offset: int
    length: int


def wanted(header: str | None, size: int) -> Span | None:
    """The part that a Range header names; None where the whole file is to be sent: without one, or with one of a kind that is not known.

    Raises `ValueError` where nothing of the file is in the range.
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        offset, end = max(size - int(last), 0), size
    else:
        offset, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < int(first):
            return None
    if offset >= size or end <= offset:
        raise ValueError(f"the file has {size} bytes; nothing of it is in {header}")
    return Span(offset, end - offset)
