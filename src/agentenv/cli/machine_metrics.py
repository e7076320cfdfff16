"""The metrics of this machine and of every live sandbox on it, of all processes: read from journals and cgroups, disturbing nothing."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections import Counter
from pathlib import Path

from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.monitoring.metrics import NodeMetrics, SandboxMetrics
from agentenv.node.home import Home
from agentenv.node.killing import group_of
from agentenv.node.owner import live_records
from agentenv.node.records import SandboxRecord
from agentenv.node.snapshots import SnapshotTree
from agentenv.paths import state_home


def sandboxes_here(owner_pid: int | None = None) -> list[SandboxRecord]:
    """Every live sandbox in AGENTENV_HOME, or those of one process."""
    home = Home(state_home())
    if not home.owners.is_dir():
        return []
    return [record for record in live_records(home) if owner_pid in (None, record.owner_pid)]


def record_machine(node: NodeMetrics, sandboxes: SandboxMetrics) -> None:
    """Sets the gauges of `node` and `sandboxes` to what this machine shows now."""
    name, records, home = socket.gethostname(), sandboxes_here(), state_home()
    node.cores.labels(name).set(len(os.sched_getaffinity(0)))
    memory = {key: int(kib) * 1024 for key, kib in re.findall(r"^(\w+):\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)}
    node.memory.labels(name).set(memory["MemTotal"])
    node.memory_available.labels(name).set(memory["MemAvailable"])
    if home.is_dir():
        node.storage_free.labels(name).set(shutil.disk_usage(home).free)
    node.sandboxes.labels(name).set(len(records))
    kept = Home(home).snapshots
    node.snapshots.labels(name).set(len(SnapshotTree(kept).all()) if kept.is_dir() else 0)
    for (backend, state), count in Counter((record.backend, record.state) for record in records).items():
        sandboxes.live.labels(backend, state).set(count)
    tree = CgroupTree.discover()
    for record in records:
        _record_usage(sandboxes, tree, record)


def _record_usage(sandboxes: SandboxMetrics, tree: CgroupTree, record: SandboxRecord) -> None:
    group = None if record.init is None else group_of(record.init[0])
    if group is None:
        return
    try:
        usage = tree.open(group).usage()
    except OSError:
        # It ended meanwhile.
        return
    sandboxes.record_usage(record.id, memory=usage.memory, cpu_seconds=usage.cpu_seconds, storage=usage.storage, processes=usage.processes)
