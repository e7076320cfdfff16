"""What a sandbox's limits mean where the memory of its kernel is counted with its own."""

from __future__ import annotations

from dataclasses import replace

from agentenv.isolation.contract import Resources, Usage

OWN_MEMORY = 64 << 20
"""Bytes that gVisor's two processes are granted on top of a sandbox's own limit; idle they use 20 to 30 MiB."""


def applied(resources: Resources) -> Resources:
    """The limits of the cgroup. What it would count as processes are threads of gVisor's, so `pids` is held by gVisor itself."""
    memory = None if resources.memory is None else resources.memory + OWN_MEMORY
    return replace(resources, memory=memory, pids=None)


def without_own_memory(usage: Usage) -> Usage:
    """The same use, with the limit that was asked for."""
    return usage if usage.memory_limit is None else replace(usage, memory_limit=max(0, usage.memory_limit - OWN_MEMORY))
