"""Logging: events with fields through the standard library's `logging`, shown by the command line as lines or as JSON.

A library must not write to its user's terminal unasked, so `logger` leaves that to `logging` (silent below warning). Nor does it load
structlog, which takes a sixth of a second: only the formatter of `configure_logging` does, at the first record that is really written.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

_FIELDS = "agentenv_fields"


class Logger:
    """Logs events by name with fields: `log.info("backend.chosen", backend="namespace")`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        """For finding faults."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """What happened as it should."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """What the reader should look at some time."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """What failed and is not raised."""
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            shown = " ".join((event, *(f"{name}={value!r}" for name, value in fields.items())))
            self._logger.log(level, "%s", shown, extra={_FIELDS: {"event": event, **fields}})


def logger(name: str) -> Logger:
    """The logger of a module: `logger(__name__)`."""
    return Logger(name)


def configure_logging(*, level: str = "warning", json_lines: bool = False, stream: TextIO | None = None) -> None:
    """Shows all logging of this process, also of libraries, in one form: call it once, at a program's start.

    `level` is one of debug, info, warning, error. Output goes to `stream`, by default stderr, so that stdout carries results only.
    """
    out = stream or sys.stderr
    handler = logging.StreamHandler(out)
    handler.setFormatter(_Formatter(json_lines=json_lines, colours=out.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _Formatter(logging.Formatter):
    """A record as structlog renders it."""

    def __init__(self, *, json_lines: bool, colours: bool) -> None:
        super().__init__()
        self._json_lines = json_lines
        self._colours = colours
        self._render: Callable[[Any, str, MutableMapping[str, Any]], str | bytes] | None = None

    def format(self, record: logging.LogRecord) -> str:
        if self._render is None:
            import structlog

            self._render = structlog.processors.JSONRenderer() if self._json_lines else structlog.dev.ConsoleRenderer(colors=self._colours)
        level = record.levelname.lower()
        event: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": level,
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return str(self._render(None, level, event))
