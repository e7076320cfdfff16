"""Reads what `JsonLinesSink` writes, also while it is being written and after its writer was killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from agentenv.monitoring.events import rotated

_decoder = msgspec.json.Decoder(dict[str, Any])
_CHUNK = 1 << 16


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object on one line, or None for half a line or anything else that is no JSON object."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole object of a log with its rotated parts, the oldest first; a missing file has none."""
    for part in [*older_parts(path), path]:
        try:
            with part.open("rb") as file:
                yield from (record for line in file if line.endswith(b"\n") and (record := parse_line(line)) is not None)
        except FileNotFoundError:
            continue


def older_parts(path: Path) -> list[Path]:
    """The rotated parts of a log, the oldest first."""
    parts: list[Path] = []
    while (part := rotated(path, len(parts) + 1)).exists():
        parts.append(part)
    return parts[::-1]


def last_lines(path: Path, count: int) -> list[dict[str, Any]]:
    """The last `count` whole objects of a log without its rotated parts, the oldest first; reads no more of the file than it needs."""
    try:
        with path.open("rb") as file:
            position = file.seek(0, os.SEEK_END)
            tail = b""
            while position and tail.count(b"\n") <= count + 1:
                step = min(_CHUNK, position)
                position = file.seek(position - step)
                tail = file.read(step) + tail
    except FileNotFoundError:
        return []
    lines = tail.split(b"\n")[1 if position else 0 : -1]
    return [record for line in lines if (record := parse_line(line)) is not None][-count:] if count else []


class LineFollower:
    """Gives at each `poll` the objects that a log has gained since, at the first all of them; follows the log through its rotations."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        self._offset = 0

    def poll(self) -> list[dict[str, Any]]:
        """The new objects, the oldest first; half a line stays for the next poll."""
        found: list[dict[str, Any]] = []
        if self._inode is None:
            found += [record for part in older_parts(self._path) for record in self._whole(part)]
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if self._inode is not None and status.st_ino != self._inode:
                    found += self._rest_of_rotated()
                    self._offset = 0
                self._inode = status.st_ino
                file.seek(min(self._offset, status.st_size))
                found += self._take(file.read())
        except FileNotFoundError:
            pass
        return found

    def _whole(self, part: Path) -> list[dict[str, Any]]:
        try:
            return [record for line in part.read_bytes().splitlines() if (record := parse_line(line)) is not None]
        except FileNotFoundError:
            return []

    def _rest_of_rotated(self) -> list[dict[str, Any]]:
        """What was appended to the previous file after the last poll, where it is still the first rotated one."""
        try:
            with rotated(self._path, 1).open("rb") as file:
                if os.fstat(file.fileno()).st_ino != self._inode:
                    return []
                file.seek(self._offset)
                return self._take(file.read())
        except FileNotFoundError:
            return []

    def _take(self, data: bytes) -> list[dict[str, Any]]:
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return [record for line in data[:whole].splitlines() if (record := parse_line(line)) is not None]
