"""Routes about the machine that the sandboxes run on: one node, this one."""

from __future__ import annotations

import os
import platform
import shutil
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from agentenv.errors import NotFound
from agentenv.server.control import wire
from agentenv.server.control.answers import FAULTS
from agentenv.server.services import Given, Overseer, Services
from agentenv.version import __version__

router = APIRouter(tags=["nodes"], responses=FAULTS)


class Disk(BaseModel):
    """The disk of AGENTENV_HOME."""

    mountPoint: str
    device: str
    filesystemType: str
    usedBytes: int
    totalBytes: int


class NodeMetrics(BaseModel):
    """What the machine has, and how much of it is used or given away."""

    allocatedCPU: int
    allocatedMemoryBytes: int
    cpuPercent: int
    cpuCount: int
    memoryUsedBytes: int
    memoryTotalBytes: int
    disks: list[Disk]
    hugePagesTotal: int = 0
    hugePagesUsed: int = 0
    hugePagesReserved: int = 0
    hugePageSizeBytes: int = 0


class MachineInfo(BaseModel):
    """What kind of machine it is."""

    cpuFamily: str
    cpuModel: str
    cpuModelName: str
    cpuArchitecture: str


class Node(BaseModel):
    """The machine. `backend` (what walls its sandboxes have) and `counts` are our own."""

    id: str
    serviceInstanceID: str
    clusterID: str = "00000000-0000-0000-0000-000000000000"
    version: str = __version__
    commit: str = ""
    status: Literal["ready", "draining"]
    statusChangedAt: datetime
    sandboxCount: int
    sandboxStartingCount: int
    createSuccesses: int
    createFails: int
    metrics: NodeMetrics
    machineInfo: MachineInfo
    backend: str
    counts: dict[str, int]


@router.get("/nodes")
async def nodes(services: Given, principal: Overseer) -> list[Node]:
    """The one node of this server."""
    return [_node(services)]


@router.get("/nodes/{nodeID}")
async def node(nodeID: str, services: Given, principal: Overseer) -> Node:
    """The node with that id."""
    found = _node(services)
    if nodeID != found.id:
        raise NotFound(f"there is no node {nodeID!r}.")
    return found


def _node(services: Services) -> Node:
    counts = services.fleet.count()
    given = services.fleet.given()
    return Node(
        id=platform.node(),
        serviceInstanceID=services.fleet.node.owner.id,
        status="draining" if services.fleet.leaving else "ready",
        statusChangedAt=wire.moment(services.fleet.opened),
        sandboxCount=counts["running"],
        sandboxStartingCount=counts["starting"],
        createSuccesses=services.fleet.telemetry.started,
        createFails=services.fleet.telemetry.failed,
        metrics=NodeMetrics(
            allocatedCPU=round(given.cpu),
            allocatedMemoryBytes=given.memory,
            cpuPercent=min(round(100 * os.getloadavg()[0] / (os.cpu_count() or 1)), 100),
            cpuCount=os.cpu_count() or 1,
            memoryUsedBytes=wire.machine_memory() - available_memory(),
            memoryTotalBytes=wire.machine_memory(),
            disks=[_disk(services.home)],
        ),
        machineInfo=_machine(),
        backend=services.ground.backend,
        counts=counts,
    )


def available_memory() -> int:
    """Bytes that programs could still have without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _disk(home: Path) -> Disk:
    usage = shutil.disk_usage(home)
    return Disk(mountPoint=str(home), device="", filesystemType="", usedBytes=usage.used, totalBytes=usage.total)


@cache
def _machine() -> MachineInfo:
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    return MachineInfo(
        cpuFamily=facts.get("cpu family", ""),
        cpuModel=facts.get("model", ""),
        cpuModelName=facts.get("model name", ""),
        cpuArchitecture=platform.machine(),
    )
