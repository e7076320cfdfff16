"""Lets a sandbox's kernel use all processors again after it has counted those that it shall show."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from agentenv.isolation.namespace.cgroups import Cgroup


def release(cgroup: Cgroup) -> None:
    """Every thread of every process in the cgroup may run anywhere that this process may."""
    everywhere = os.sched_getaffinity(0)
    if not cgroup.procs_files:
        return
    for pid in cgroup.procs_files[0].read_text().split():
        with suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), everywhere)
