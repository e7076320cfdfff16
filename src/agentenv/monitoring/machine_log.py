"""The log of all nodes in one AGENTENV_HOME, to which every process that owns sandboxes appends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from agentenv.monitoring.events import JsonLinesSink, NullSink
from agentenv.monitoring.logs import logger

_log = logger(__name__)


class SharedJsonLinesSink(JsonLinesSink):
    """A `JsonLinesSink` for a file that several processes write to; each line says which (`pid`).

    Lines do not mix, since each is one appending write. The process that finds the file full turns it under a lock; the others notice at
    their next line that the name means another file.
    """

    def write(self, record: dict[str, object]) -> None:
        """As usual, with this process's number."""
        super().write(record | {"pid": os.getpid()})

    def _make_room(self, length: int) -> None:
        if not self._is_current():
            self._reopen()
        self._size = os.fstat(self._file()).st_size
        if self._size and self._size + length > self._max_bytes:
            lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self._is_current():
                    self._rotate()
                else:
                    self._reopen()
            finally:
                os.close(lock)

    def _is_current(self) -> bool:
        """Whether the file's name still means the file that is open here."""
        opened = os.fstat(self._file())
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def machine_log_file(home: Path) -> Path:
    """Where the log of a home is."""
    return home / "events.jsonl"


def open_machine_log(home: Path) -> JsonLinesSink | NullSink:
    """The sink for a node in `home`; where it cannot be opened (a full disk), one that forgets, and a warning."""
    try:
        return SharedJsonLinesSink(machine_log_file(home), max_bytes=16 * 1024**2)
    except OSError as error:
        _log.warning("monitoring.no_machine_log", home=str(home), error=error.strerror)
        return NullSink()
