"""Finds the end of one command in the output of a persistent shell.

After each command the shell prints a marker that the command cannot know: a fresh random word, which the shell itself reads only when the
command is over. So whatever a command prints, it cannot be taken for the end.
"""

from __future__ import annotations

from agentenv.errors import ProtocolError


class MarkerFinder:
    """One command's part of one output: feed it what comes, it gives back what belongs to the command.

    The marker is `word`, a space, the exit status in decimal, a line end. `status` is set once it has come; `rest` is what came behind it.
    """

    def __init__(self, word: bytes) -> None:
        self._marker = word + b" "
        self._held = b""
        self.status: int | None = None
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Returns the output that is certain; what may be the beginning of the marker is held back."""
        if self._held:
            data = self._held + data
            self._held = b""
        position = data.find(self._marker)
        if position < 0:
            keep = self._possible_beginning(data)
            self._held = data[len(data) - keep :] if keep else b""
            return data[: len(data) - keep]
        end = data.find(b"\n", position)
        if end < 0 and len(data) - position <= len(self._marker) + 3:
            self._held = data[position:]
            return data[:position]
        status = data[position + len(self._marker) : end]
        if not status.isdigit() or len(status) > 3:
            raise ProtocolError(f"the persistent shell said that a command ended with the status {status!r}.")
        self.status = int(status)
        self.rest = data[end + 1 :]
        return data[:position]

    def flush(self) -> bytes:
        """What was held back, when no marker will come any more."""
        held, self._held = self._held, b""
        return held

    def _possible_beginning(self, data: bytes) -> int:
        """How many bytes at the end of `data` are a beginning of the marker."""
        longest = min(len(data), len(self._marker) - 1)
        start = data.find(self._marker[:1], len(data) - longest)
        while start >= 0:
            if self._marker.startswith(data[start:]):
                return len(data) - start
            start = data.find(self._marker[:1], start + 1)
        return 0
