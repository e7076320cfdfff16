"""What a Linux guest's console tells of its end and of its want of memory."""

from __future__ import annotations

import re

from agentenv.isolation.contract import OomKill

_OOM = re.compile(r"[Oo]ut of memory: Killed process \d+ \((?P<name>.*)\) total-vm")  # mm/oom_kill.c
_PANIC = re.compile(r"Kernel panic - not syncing: (?P<why>.*)")  # kernel/panic.c


def oom_kills(console: str, memory: int) -> tuple[OomKill, ...]:
    """The kills for want of memory that the console still shows, in a machine of `memory` bytes, all of which were used then."""
    return tuple(OomKill(limit=memory, peak=memory, process=found["name"]) for found in _OOM.finditer(console))


def panic(console: str) -> str | None:
    """Why the kernel gave up, if it did."""
    found = _PANIC.search(console)
    return found["why"].strip() if found else None
