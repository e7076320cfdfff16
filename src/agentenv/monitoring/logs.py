"""Logging of the command-line programs: structlog, to stderr, as readable lines or as JSON."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog


def configure_logging(*, level: str = "warning", json_lines: bool = False, stream: TextIO | None = None) -> None:
    """Sets up structlog for this process, once, at its start; libraries that use `logging` get the same level and stream.

    `level` is one of debug, info, warning, error. Output goes to `stream`, by default stderr, so that stdout carries results only.
    """
    out = stream or sys.stderr
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=number, stream=out, format="%(levelname)s %(name)s: %(message)s", force=True)
    renderer = structlog.processors.JSONRenderer() if json_lines else structlog.dev.ConsoleRenderer(colors=out.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
