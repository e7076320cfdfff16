"""Log lines of a sandbox or a build as they come."""

from __future__ import annotations

from nicegui import ui

from agentenv.server.dashboard.rendering import clock
from agentenv.server.fleet.logbook import Logbook, LogLine

KEPT = 1000
"""Lines that a page holds."""


class LogView:
    """The last lines about one thing; `update` sends the browser only those that are new."""

    def __init__(self, logbook: Logbook, subject: str) -> None:
        self._logbook = logbook
        self._subject = subject
        self._since: int | None = None
        self._seen: set[LogLineKey] = set()
        self._nothing = ui.label("Nothing is logged yet.").classes("empty")
        self._log = ui.log(max_lines=KEPT).classes("log").props('role=log aria-label="Log" tabindex=0')

    async def update(self) -> None:
        """Looks for new lines."""
        lines = await self._logbook.read(self._subject, since=self._since, limit=KEPT, backward=self._since is None)
        for line in lines[::-1] if self._since is None else lines:
            self._add(line)
        self._nothing.set_visibility(not self._seen)
        self._log.set_visibility(bool(self._seen))

    def _add(self, line: LogLine) -> None:
        # Lines of one millisecond come again with the next look.
        key = (line.time, line.message, tuple(line.fields.values()))
        if key in self._seen:
            return
        if self._since != line.time:
            self._seen = {known for known in self._seen if known[0] >= line.time}
        self._seen.add(key)
        self._since = line.time
        fields = "  ".join(f"{name}={value}" for name, value in line.fields.items() if value)
        self._log.push(
            f"{clock(line.time / 1000)}  {line.message}  {fields}".rstrip(), classes={"error": "bad", "warn": "warn"}.get(line.level, "")
        )


LogLineKey = tuple[int, str, tuple[str, ...]]
