"""What one owner has running, written ahead of every change so that another process can list it, and clean up after its death.

A line is a JSON object with the facts about one sandbox that are new; a reader merges them in order, and `"state": "gone"` forgets
the sandbox. Lines are not flushed to the disk: what ends only the process (kill -9) loses no write, and what ends the machine ends
every cgroup, network namespace and process with it. Directories, which do outlast a reboot, are found by their place and need no journal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

Facts = TypeVar("Facts")

GONE = "gone"
COMPACT_ABOVE = 256 * 1024
"""Bytes from which on a journal that is mostly about sandboxes of the past is rewritten."""


class Journal:
    """The journal at `path`, open for appending by the one process that owns it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        self._live: dict[str, dict[str, object]] = {}
        self._torn = False
        self._descriptor = _open(path)
        self._size = 0

    def record(self, sandbox_id: str, **facts: object) -> None:
        """Appends `facts` about a sandbox. Raises OSError when the disk is full; the journal stays readable even then."""
        line = self._encoder.encode({"id": sandbox_id, **facts}) + b"\n"
        self._append(line)
        self._live.setdefault(sandbox_id, {}).update(facts)

    def forget(self, sandbox_id: str) -> None:
        """Records that the sandbox is gone. Never fails: with a full disk, the removal of its directory speaks for itself."""
        self._live.pop(sandbox_id, None)
        try:
            self._append(self._encoder.encode({"id": sandbox_id, "state": GONE}) + b"\n")
            if self._size > COMPACT_ABOVE:
                self._compact()
        except OSError:
            return

    def close(self) -> None:
        """Closes the file; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, line: bytes) -> None:
        # A line that a full disk cut off is ended first, so that it spoils no other.
        data = b"\n" + line if self._torn else line
        written = os.write(self._descriptor, data)
        self._size += written
        self._torn = written < len(data)
        if self._torn:
            raise OSError(28, "No space left on device", str(self._path))

    def _compact(self) -> None:
        content = b"".join(self._encoder.encode({"id": name, **facts}) + b"\n" for name, facts in self._live.items())
        if len(content) > self._size // 2:
            return
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(self._path)
        os.close(self._descriptor)
        self._descriptor = _open(self._path)
        self._size = len(content)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def read_journal(path: Path) -> dict[str, Mapping[str, Any]]:
    """The facts about each sandbox that is not gone, the oldest first. Lines that are cut off or no JSON objects are passed over."""
    live: dict[str, dict[str, Any]] = {}
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    for line in content.splitlines():
        try:
            facts = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            continue
        name = facts.pop("id", None)
        if not isinstance(name, str):
            continue
        if facts.get("state") == GONE:
            live.pop(name, None)
        else:
            live.setdefault(name, {}).update(facts)
    return dict(live)


def understood(facts: Mapping[str, object], kind: type[Facts]) -> Facts:
    """What a journal tells of one sandbox as a `kind`, whose paths it holds as texts. Raises `msgspec.ValidationError`."""
    return msgspec.convert(facts, kind, dec_hook=_path)


def _path(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)  # so msgspec wants to be told of what has no hook
