"""Logging of the command line: to the given stream, at the given level, as lines or JSON."""

import io
import json
import logging

import structlog

from agentenv.monitoring.logs import configure_logging


def test_json_lines_at_a_level() -> None:
    stream = io.StringIO()
    configure_logging(level="info", json_lines=True, stream=stream)
    log = structlog.get_logger()
    log.debug("hidden")
    log.info("shown", sandbox="a")
    logging.getLogger("somewhere").warning("from a library")
    first, second = stream.getvalue().splitlines()
    record = json.loads(first)
    assert (record["event"], record["level"], record["sandbox"]) == ("shown", "info", "a")
    assert record["timestamp"].endswith("Z")
    assert second == "WARNING somewhere: from a library"


def test_lines_for_people() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    log = structlog.get_logger()
    log.info("hidden")
    log.warning("shown", sandbox="a")
    (line,) = stream.getvalue().splitlines()
    assert "shown" in line
    assert "sandbox=a" in line
    assert "\x1b" not in line
