"""What a sandbox uses now, in the fields of envd's /metrics."""

from __future__ import annotations

import os

from agentenv.server.envd.session import Session


async def measured(session: Session) -> dict[str, float | int]:
    """Memory and disk in bytes; the use of its processors in percent (100: all of them are busy) since it was last asked."""
    stats = await session.link.connection().call("stats")
    usage = await session.sandbox.metrics()
    limits = session.link.host.request.resources
    seconds, uptime = usage.cpu_seconds or 0.0, float(stats.get("uptime") or 0.0)
    before, session.processor_sample = session.processor_sample, (uptime, seconds)
    if before is None or before[0] >= uptime:
        before = (0.0, 0.0)
    span = uptime - before[0]
    memory_total = usage.memory_limit or limits.memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory = usage.memory or 0
    processors = limits.cpu or os.cpu_count() or 1
    return {
        "cpu_count": max(1, round(processors)),
        "cpu_used_pct": round(max(0.0, 100 * (seconds - before[1]) / span / processors), 2) if span > 0 else 0.0,
        "mem_total": memory_total,
        "mem_used": memory,
        "mem_cache": 0,
        "mem_total_mib": memory_total >> 20,
        "mem_used_mib": memory >> 20,
        "disk_used": usage.storage or 0,
        "disk_total": limits.storage or int(stats.get("disk_total") or 0),
    }
