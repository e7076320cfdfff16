"""Events: one JSON object a line, written so that a reader can follow along and a crash costs at most half a line."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

LARGEST_LINE = 256 * 1024
"""Bytes; what is longer is replaced by a line that says how long it was."""


@runtime_checkable
class EventSink(Protocol):
    """Takes what happened. `event` is a short name with dots from the general to the special: "sandbox.created"."""

    def emit(self, event: str, **fields: object) -> None:
        """Records one event; never raises because of where it is written to, and may be called from any thread."""
        ...


class NullSink:
    """Forgets everything."""

    def emit(self, event: str, **fields: object) -> None:
        """Nothing happens."""

    def close(self) -> None:
        """Nothing happens."""


class FanOut:
    """Gives every event to each of `sinks`, in order."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def emit(self, event: str, **fields: object) -> None:
        """Passes the event on."""
        for sink in self._sinks:
            sink.emit(event, **fields)


class JsonLinesSink:
    """Appends events to a file as `{"time": unix seconds, "event": name, …fields}`.

    Each line is one `write` to a descriptor opened for appending. At `max_bytes` the file becomes `NAME.1` (that one `NAME.2`, … up to
    `backups`, the oldest is removed). One sink at a time writes to a file. What could not be written (a full disk) is counted and reported
    in the file once that works again: a training does not die of its diary.
    """

    def __init__(self, path: Path, *, max_bytes: int = 64 * 1024**2, backups: int = 3) -> None:
        """Opens or creates `path`; its directory must exist. Raises OSError."""
        self.path = path
        self.lost = 0
        self._max_bytes = max_bytes
        self._backups = backups
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)
        self._descriptor: int | None = None
        self._size = 0
        self._torn = False
        self._open()

    def emit(self, event: str, **fields: object) -> None:
        """Appends one event; see `EventSink.emit`."""
        self.write({"time": time.time(), "event": event} | fields)

    def write(self, record: dict[str, object]) -> None:
        """Appends any record. Values that JSON has no form for are written as text, NaN and infinity as null."""
        line = self._encoder.encode(record) + b"\n"
        if len(line) > LARGEST_LINE:
            kept = {name: record[name] for name in ("time", "event", "step", "pid") if name in record}
            line = self._encoder.encode(kept | {"truncated_bytes": len(line)}) + b"\n"
        with self._lock:
            if self._descriptor is not None:
                self._append(line)

    def close(self) -> None:
        """Closes the file; later events are forgotten. Idempotent."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def __enter__(self) -> JsonLinesSink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        if self.lost:
            report = {"time": time.time(), "event": "monitoring.lines_lost", "count": self.lost}
            line = self._encoder.encode(report) + b"\n" + line
        if self._torn:
            line = b"\n" + line
        try:
            self._make_room(len(line))
            written = os.write(self._file(), line)
            self._size += written
        except OSError:
            self.lost += 1
            return
        if written < len(line):
            self.lost += 1
            self._torn = True
        else:
            self.lost = 0
            self._torn = False

    def _make_room(self, length: int) -> None:
        """Turns the file where `length` more bytes do not fit."""
        if self._size and self._size + length > self._max_bytes:
            self._rotate()

    def _file(self) -> int:
        assert self._descriptor is not None
        return self._descriptor

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._descriptor).st_size
        # A writer before us may have been killed within a line.
        self._torn = self._size > 0 and os.pread(self._descriptor, 1, self._size - 1) != b"\n"

    def _rotate(self) -> None:
        for number in range(self._backups, 0, -1):
            older = self.path if number == 1 else rotated(self.path, number - 1)
            if older.exists():
                older.replace(rotated(self.path, number))
        if not self._backups:
            self.path.unlink(missing_ok=True)
        self._reopen()

    def _reopen(self) -> None:
        """Goes on with the file that has the name now."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._open()


def rotated(path: Path, number: int) -> Path:
    """The name of the `number`-th older part of a log: metrics.jsonl.1 is the one before metrics.jsonl."""
    return path.with_name(f"{path.name}.{number}")


def _plain(value: object) -> object:
    """JSON's form of what msgspec does not know: numpy scalars and arrays through `tolist`, all else as text."""
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else str(value)
