"""Routes about training runs. They are the machine's, not a tenant's, so that they are for those who oversee the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, StreamingResponse

from agentenv.monitoring.lines import LineFollower
from agentenv.monitoring.run_dir import RunDirectory
from agentenv.monitoring.runs import find_run
from agentenv.monitoring.training_monitor import summarise
from agentenv.server.control.answers import FAULTS
from agentenv.server.services import Given, Overseer, Services
from agentenv.server.trainings import reading

LOOK_EVERY = 0.5
"""Seconds between two looks at a run that is followed."""

router = APIRouter(prefix="/runs", tags=["runs"], responses=FAULTS)

RunId = Annotated[str, Path(alias="runID", max_length=200, description='The id of a run, or "latest" for the live or else the latest one.')]


class Run(BaseModel):
    """A training run: `started` in unix seconds, `progress` from 0 to 1; null where it is not known."""

    id: str
    status: str
    algorithm: str
    environment: str
    started: float | None
    step: float | None
    progress: float | None
    return_mean: float | None


@router.get("")
async def list_runs(services: Given, principal: Overseer) -> list[Run]:
    """All runs, the latest first."""
    rows = await asyncio.to_thread(reading.listed, services.settings.runs)
    return [Run(**asdict(row)) for row in rows]


@router.get("/{runID}")
async def get_run(run: RunId, services: Given, principal: Overseer) -> dict[str, Any]:
    """Where a training stands, as `TrainingMonitor.get_metrics` tells it."""
    found = await _find(services, run)
    return await asyncio.to_thread(lambda: summarise(found, found.status()))


@router.get("/{runID}/metrics")
async def get_metrics(
    run: RunId,
    services: Given,
    principal: Overseer,
    start: Annotated[int, Query(ge=0, le=2**62, description="How many rows to pass over.")] = 0,
    limit: Annotated[int, Query(ge=1, le=100_000)] = 10_000,
) -> list[dict[str, Any]]:
    """Rows of metrics, the oldest first."""
    found = await _find(services, run)
    return await asyncio.to_thread(lambda: list(islice(found.metrics(), start, start + limit)))


@router.get("/{runID}/follow", response_class=StreamingResponse)
async def follow(run: RunId, services: Given, principal: Overseer) -> StreamingResponse:
    """All rows of metrics, and each further one as it is written, one JSON object a line, until the training ends."""
    return StreamingResponse(_rows(await _find(services, run)), media_type="application/x-ndjson")


@router.get("/{runID}/prometheus", response_class=PlainTextResponse)
async def prometheus(run: RunId, services: Given, principal: Overseer) -> PlainTextResponse:
    """What the training process itself has counted, in Prometheus' text format."""
    found = await _find(services, run)
    return PlainTextResponse(await asyncio.to_thread(found.prometheus))


async def _find(services: Services, name: str) -> RunDirectory:
    directory = services.settings.runs
    if name == "latest":
        return await asyncio.to_thread(find_run, None, directory)
    return await asyncio.to_thread(reading.find, directory, name)


async def _rows(run: RunDirectory) -> AsyncIterator[bytes]:
    follower = LineFollower(run.metrics_file)
    encoder = msgspec.json.Encoder()
    going = True
    while going:
        # Asked before the last look, so that nothing is missed which was written in between.
        going = await asyncio.to_thread(run.is_live)
        rows = await asyncio.to_thread(follower.poll)
        if rows:
            yield b"".join(encoder.encode(row) + b"\n" for row in rows)
        elif going:
            await asyncio.sleep(LOOK_EVERY)
