"""What all tests share: a count of the reasons for which tests could not run on this machine."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about what is tested.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_configure() -> None:
    # Tests start hundreds of processes, each of which would compile all modules anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Whoever runs the tests in the background may have these ignored, and every child would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple))
    if reasons:
        terminalreporter.section("not run on this machine")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:4d}  {reason.removeprefix('Skipped: ')}")
