"""Routes about what sandboxes used and what happened to them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from agentenv.errors import ConfigError, NotFound
from agentenv.server.control import wire
from agentenv.server.control.answers import FAULTS
from agentenv.server.control.sandboxes import SandboxId
from agentenv.server.fleet import LogLine, Sample, SandboxView
from agentenv.server.services import Given, Reader

router = APIRouter(tags=["sandboxes"], responses=FAULTS)

MOST = 100
Level = Literal["debug", "info", "warn", "error"]
Moment = Annotated[int | None, Query(ge=0, le=2**40, description="Unix seconds.")]
Milliseconds = Annotated[int | None, Query(ge=0, le=2**50, description="Unix milliseconds.")]


class Metric(BaseModel):
    """What a sandbox used at one moment: percent of its cores, bytes of memory and disk."""

    timestamp: datetime
    timestampUnix: int
    cpuCount: int
    cpuUsedPct: float
    memUsed: int
    memTotal: int
    memCache: int
    diskUsed: int
    diskTotal: int


class Metrics(BaseModel):
    """The latest metric of each sandbox that was asked for and is there."""

    sandboxes: dict[str, Metric]


class LogText(BaseModel):
    """A line as one text."""

    timestamp: datetime
    line: str


class LogEntry(BaseModel):
    """A line with its fields."""

    timestamp: datetime
    message: str
    level: Level
    fields: Mapping[str, str]


class Logs(BaseModel):
    """Lines in both forms."""

    logs: list[LogText]
    logEntries: list[LogEntry]


class LogsV2(BaseModel):
    """Lines."""

    logs: list[LogEntry]


class Refusal(BaseModel):
    """One destination that a sandbox was refused, when (unix seconds) and by which rule; `port` is 0 where there is none."""

    time: float
    destination: str
    port: int
    protocol: str
    rule: str


class NetworkLog(BaseModel):
    """A sandbox's rules with what they refused, the oldest first."""

    allowInternetAccess: bool | None
    allowOut: list[str]
    denyOut: list[str]
    allowPublicTraffic: bool
    httpsPorts: list[int]
    maskRequestHost: str | None = None
    denied: list[Refusal]


@router.get("/sandboxes/metrics")
async def latest(
    services: Given, principal: Reader, sandbox_ids: Annotated[str, Query(description="Ids, separated by commas.")]
) -> Metrics:
    """What several sandboxes use now; those that there are not are left out."""
    wanted = dict.fromkeys(sandbox_ids.split(","))
    if len(wanted) > MOST:
        raise ConfigError(f"these are {len(wanted)} ids", key="sandbox_ids", remedy=f"Ask for {MOST} at most.")
    found: dict[str, Metric] = {}
    for identifier in wanted:
        try:
            view = services.fleet.owned(principal.tenant, identifier)
            samples = await services.fleet.samples(principal.tenant, identifier)
        except NotFound:
            continue
        if samples:
            found[view.id] = _metric(view, samples[-1])
    return Metrics(sandboxes=found)


@router.get("/sandboxes/{sandboxID}/metrics")
async def metrics(sandbox: SandboxId, services: Given, principal: Reader, start: Moment = None, end: Moment = None) -> list[Metric]:
    """What a sandbox has used, the oldest first."""
    view = services.fleet.owned(principal.tenant, sandbox)
    samples = await services.fleet.samples(principal.tenant, sandbox)
    return [_metric(view, one) for one in samples if (start is None or one.time >= start) and (end is None or int(one.time) <= end)]


@router.get("/sandboxes/{sandboxID}/logs")
async def logs(
    sandbox: SandboxId, services: Given, principal: Reader, start: Milliseconds = None, limit: Annotated[int, Query(ge=0, le=10_000)] = 1000
) -> Logs:
    """What happened to a sandbox, the oldest first."""
    view = services.fleet.owned(principal.tenant, sandbox)
    lines = await services.fleet.logbook.read(view.id, since=start, limit=limit)
    return Logs(logs=[LogText(timestamp=_moment(line), line=_text(line)) for line in lines], logEntries=[_entry(line) for line in lines])


@router.get("/v2/sandboxes/{sandboxID}/logs")
async def logs_v2(
    sandbox: SandboxId,
    services: Given,
    principal: Reader,
    cursor: Milliseconds = None,
    limit: Annotated[int, Query(ge=0, le=1000)] = 1000,
    direction: Literal["forward", "backward"] = "forward",
    level: Level = "debug",
    search: Annotated[str | None, Query(max_length=256, pattern=r"^[^\x00]*$")] = None,
) -> LogsV2:
    """What happened to a sandbox, from the cursor on (`backward`: up to it, the latest first)."""
    view = services.fleet.owned(principal.tenant, sandbox)
    backward = direction == "backward"
    bounds = {"until" if backward else "since": cursor}
    lines = await services.fleet.logbook.read(view.id, **bounds, limit=limit, backward=backward, level=level, search=search)
    return LogsV2(logs=[_entry(line) for line in lines])


@router.get("/sandboxes/{sandboxID}/network")
async def network(sandbox: SandboxId, services: Given, principal: Reader) -> NetworkLog:
    """What a sandbox may reach, and what it was refused lately."""
    view = services.fleet.owned(principal.tenant, sandbox)
    refused = await services.fleet.denials(principal.tenant, sandbox)
    rules = wire.network_of(view)
    return NetworkLog(allowInternetAccess=view.network.internet, **rules, denied=[Refusal(**asdict(one)) for one in refused])


def _metric(view: SandboxView, sample: Sample) -> Metric:
    limits = view.resources
    cores = limits.cpu or os.cpu_count() or 1
    return Metric(
        timestamp=wire.moment(sample.time),
        timestampUnix=int(sample.time),
        cpuCount=wire.whole_cores(limits.cpu),
        cpuUsedPct=round(min(100 * sample.cpu / cores, 100.0), 2),
        memUsed=sample.memory,
        memTotal=limits.memory or wire.machine_memory(),
        memCache=0,
        diskUsed=sample.storage,
        diskTotal=limits.storage or 0,
    )


def _moment(line: LogLine) -> datetime:
    return wire.moment(line.time / 1000)


def _entry(line: LogLine) -> LogEntry:
    return LogEntry(timestamp=_moment(line), message=line.message, level=line.level, fields=line.fields)


def _text(line: LogLine) -> str:
    return " ".join((line.message, *(f"{name}={value}" for name, value in line.fields.items())))
