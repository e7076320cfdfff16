"""Logging: silent in a library, in one form on the command line."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentenv.monitoring.logs import configure_logging, logger


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The root logger's handlers and level are put back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_a_library_is_silent_and_light() -> None:
    code = (
        "import sys; from agentenv.monitoring.logs import logger\n"
        "log = logger('agentenv.x'); log.info('hidden', n=1); log.warning('shown', n=2)\n"
        "assert 'structlog' not in sys.modules and 'rich' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "shown n=2\n")


def test_json_lines_at_a_level() -> None:
    stream = io.StringIO()
    configure_logging(level="info", json_lines=True, stream=stream)
    log = logger("agentenv.node")
    log.debug("hidden")
    log.info("sandbox.created", sandbox="a", stages={"launch": 0.002})
    logging.getLogger("somewhere").warning("from a %s", "library")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {"level": "info", "logger": "agentenv.node", "event": "sandbox.created", "sandbox": "a", "stages": {"launch": 0.002}}
    assert (second["level"], second["logger"], second["event"]) == ("warning", "somewhere", "from a library")


def test_lines_for_people() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    log = logger("agentenv.node")
    log.info("hidden")
    log.warning("shown", sandbox="a")
    (line,) = stream.getvalue().splitlines()
    assert "shown" in line
    assert "sandbox=a" in line
    assert "\x1b" not in line


def test_exceptions_are_shown() -> None:
    stream = io.StringIO()
    configure_logging(json_lines=True, stream=stream)
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("somewhere").exception("failed")
    assert "ValueError: no" in json.loads(stream.getvalue())["exception"]
