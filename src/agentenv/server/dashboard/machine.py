"""What the machine and the fleet have and give, for the overview."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from agentenv.monitoring.stages import StageSummary
from agentenv.server.access import Tenant
from agentenv.server.control.nodes import available_memory
from agentenv.server.control.wire import machine_memory
from agentenv.server.services import Services

PRESSURE = Path("/proc/pressure")
MUCH, NEARLY_ALL = 0.75, 0.9
"""Parts of a limit from which on what is taken stands out."""
_SOME = re.compile(r"some avg10=([\d.]+)")


@dataclass(frozen=True, slots=True)
class Share:
    """How much of something is taken, in words and as a part of 1 (None: without a limit)."""

    name: str
    taken: float
    limit: float | None
    kind: str

    @property
    def part(self) -> float | None:
        """0 to 1."""
        return None if not self.limit else min(self.taken / self.limit, 1.0)

    @property
    def level(self) -> str:
        """How close to its limit it is, as a class of the style sheet."""
        part = self.part or 0.0
        return "bad" if part >= NEARLY_ALL else "warn" if part >= MUCH else ""


async def capacity(services: Services) -> tuple[Share, ...]:
    """What the whole server has at this moment."""
    fleet, limits = services.fleet, services.settings.capacity
    given, counts = fleet.given(), fleet.count()
    disk = await asyncio.to_thread(shutil.disk_usage, services.home)
    total = machine_memory()
    return (
        Share("sandboxes running", given.sandboxes, limits.sandboxes, "count"),
        Share("cores given", given.cpu, None, "cores"),
        Share("memory in use", total - available_memory(), total, "size"),
        Share("memory given", given.memory, None, "size"),
        Share("disk in use", disk.used, disk.total, "size"),
        Share("processor load", os.getloadavg()[0], os.cpu_count(), "cores"),
        *(Share(f"{name} pressure", value, 100.0, "percent") for name, value in pressure().items()),
        Share("starting and waiting", counts["starting"] + counts["waiting"], None, "count"),
        Share("kept ready in pools", counts["pooled"], None, "count"),
        Share("starts that failed", fleet.telemetry.failed, fleet.telemetry.started + fleet.telemetry.failed, "count"),
    )


def quotas(services: Services, tenant: Tenant) -> tuple[Share, ...]:
    """What a tenant has of what it may have."""
    usage, limits = services.fleet.usage_of(tenant), tenant.quotas
    templates = len(services.catalogue.all(tenant.id))
    return (
        Share("sandboxes running", usage.sandboxes, limits.sandboxes, "count"),
        Share("cores", usage.cpu, limits.cpu, "cores"),
        Share("memory", usage.memory, limits.memory, "size"),
        Share("storage", usage.storage, limits.storage, "size"),
        Share("templates", templates, limits.templates, "count"),
    )


def latencies(services: Services) -> tuple[StageSummary, ...]:
    """Percentiles of each stage of a start, over the latest."""
    return services.fleet.telemetry.metrics.sandboxes.timings.summary()


def pressure() -> dict[str, float]:
    """Per cent of the last ten seconds in which some task waited for each resource; empty where the kernel does not tell (PSI)."""
    found = {}
    for name in ("cpu", "memory", "io"):
        try:
            match = _SOME.search((PRESSURE / name).read_text())
        except OSError:
            continue
        if match:
            found[name] = float(match[1])
    return found
