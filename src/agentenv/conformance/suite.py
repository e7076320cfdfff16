"""All checks, of machines first and of sandboxes then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import cast

from agentenv.conformance import commands, cycles, files, forks, full_disk, honesty, life, limits, network, ports, snapshots, streams
from agentenv.conformance.subject import Subject
from agentenv.isolation import conformance as machine_level
from agentenv.isolation.conformance import Check, Yard


def _lifted(one: Check[Yard]) -> Check[Subject]:
    """A check of the machine level, run on the subject's yard."""
    run: Callable[[Subject], Awaitable[None]] = lambda subject: one.run(subject.yard)  # noqa: E731
    return replace(cast("Check[Subject]", one), run=run)


CHECKS: tuple[Check[Subject], ...] = (
    *(_lifted(one) for one in machine_level.CHECKS),
    *commands.CHECKS,
    *streams.CHECKS,
    *files.CHECKS,
    *ports.CHECKS,
    *network.CHECKS,
    *limits.CHECKS,
    *life.CHECKS,
    *snapshots.CHECKS,
    *full_disk.CHECKS,
    *forks.CHECKS,
    *honesty.CHECKS,
    *cycles.CHECKS,
)
