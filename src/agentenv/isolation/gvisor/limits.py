"""A sandbox's limits: memory and processor by the host's cgroup, processes by gVisor, since the host sees only threads of gVisor's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentenv.guest import Connection, files
from agentenv.isolation.contract import Resources, Usage
from agentenv.isolation.namespace import endpoint

OWN_MEMORY = 64 << 20
"""Bytes that gVisor's two processes are granted on top of a sandbox's own limit; idle they use 20 to 30 MiB."""


_PROCESSES = "/sys/fs/cgroup/pids/pids.max"  # in the sandbox
_FENCE = 256, 4
"""Host tasks of an idle sandbox, generously, and of each process in it: what bounds one whose root has lifted its own limit."""


def applied(resources: Resources) -> Resources:
    """The limits of the host's cgroup."""
    memory = None if resources.memory is None else resources.memory + OWN_MEMORY
    idle, each = _FENCE
    return replace(resources, memory=memory, pids=None if resources.pids is None else idle + each * resources.pids)


async def limit_processes(machine: Path, pids: int) -> None:
    """Has gVisor refuse more than `pids` processes and threads; `machine` is the directory in which the agent is reached.

    Raises OSError, `AgentFailure`, `ConnectionLost`.
    """
    agent = Connection.open(endpoint.connect(machine))
    try:
        await files.write(agent, _PROCESSES, str(pids).encode(), append=True)
    finally:
        agent.close()


def without_own_memory(usage: Usage) -> Usage:
    """The same use, with the limit that was asked for."""
    return usage if usage.memory_limit is None else replace(usage, memory_limit=max(0, usage.memory_limit - OWN_MEMORY))
