"""What a Linux guest's console tells of its want of memory and of its end."""

from __future__ import annotations

import re

_OOM = re.compile(r"[Oo]ut of memory: Killed process \d+ \((?P<name>.*)\) total-vm")  # mm/oom_kill.c
_PANIC = re.compile(r"Kernel panic - not syncing: (?P<why>.*)")  # kernel/panic.c


def killed_for_memory(console: str) -> tuple[str, ...]:
    """The names of the processes that the guest's kernel ended for want of memory, as far as the console still shows them."""
    return tuple(found["name"] for found in _OOM.finditer(console))


def panic(console: str) -> str | None:
    """Why the kernel gave up, if it did."""
    found = _PANIC.search(console)
    return found["why"].strip() if found else None
