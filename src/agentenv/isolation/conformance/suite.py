"""All checks of the machine level, in the order in which a person who writes a backend would make them pass."""

from __future__ import annotations

from agentenv.isolation.conformance import machines, memory

CHECKS = (*machines.CHECKS, *memory.CHECKS)
