"""When a sandbox's files exceed its storage limit, who writes is ended, and the sandbox lives on so that files can be removed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable

from agentenv.errors import StorageFull
from agentenv.monitoring import EventSink
from agentenv.node.disk_usage import Writer
from agentenv.node.records import StorageKill
from agentenv.node.storage import StorageExcess

PATIENCE = 2
"""How many times in a row it may have grown with nobody to be found who wrote."""
TOLERANCE = 1.25
"""And by how much of the limit its files must exceed it, until the sandbox itself is ended."""


class StoragePolicy:
    """Ends the writers of one sandbox. `kills` are those it ended, the oldest first.

    `members` tells the processes that may be ended; `give_up` ends the sandbox, when it grows and grows and no process is to be blamed:
    what the agent writes for the owner (`files.write`), or what many programs write that end too soon to be seen.
    """

    def __init__(
        self, sandbox_id: str, members: Callable[[], Iterable[int]], give_up: Callable[[StorageFull], None], events: EventSink
    ) -> None:
        self.kills: list[StorageKill] = []
        self._id = sandbox_id
        self._members = members
        self._give_up = give_up
        self._events = events
        self._unexplained = 0

    def exceeded(self, excess: StorageExcess) -> None:
        """The watch saw the files above the limit, for the first time or grown since."""
        ended = [writer for writer in excess.writers if self._end(writer)]
        for writer in ended:
            process = f"{writer.name} (process {writer.pid} of the host)"
            self.kills.append(StorageKill(excess.limit, excess.used, process))
            self._events.emit(
                "sandbox.storage_full", id=self._id, limit=excess.limit, used=excess.used, ended=process, written=writer.written
            )
        self._unexplained = 0 if ended else self._unexplained + 1
        if self._unexplained >= PATIENCE and excess.used > TOLERANCE * excess.limit:
            detail = "It went on growing, and no process of its own was found to be writing."
            self._give_up(StorageFull(self._id, limit=excess.limit, used=excess.used, detail=detail))

    def _end(self, writer: Writer) -> bool:
        """Kills a process if it is still there and still the sandbox's."""
        try:
            descriptor = os.pidfd_open(writer.pid)
        except ProcessLookupError:
            return False
        try:
            # The descriptor keeps meaning this process; so it is looked up once more now that it is open.
            if writer.pid not in self._members():
                return False
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True
