"""Builds on a server: the directory goes there as one archive, and what the build says comes back while it runs."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from agentenv.errors import BuildFailed, InfrastructureError
from agentenv.isolation.contract import Resources
from agentenv.sandbox.remote.address import ServerAddress
from agentenv.sandbox.remote.client import ApiClient
from agentenv.templates.dockerfile import read
from agentenv.templates.journal import BuildLine, Log
from agentenv.templates.material import Material
from agentenv.templates.selection import Selection, select

PAUSE = 0.3
"""Seconds between two questions how far a build is."""

PAGE = 100
"""Lines that the server tells at once."""


@dataclass(frozen=True, slots=True)
class RemoteOrder:
    """What is to be built there: `name` is NAME or NAME:TAG."""

    directory: Path
    dockerfile: Path
    name: str
    args: Mapping[str, str]
    target: str | None = None
    cache: bool = True
    start: str | None = None
    ready: str | None = None
    resources: Resources = field(default_factory=lambda: Resources(pids=None))


async def build_on_server(address: ServerAddress, order: RemoteOrder, log: Log) -> dict[str, Any]:
    """Builds a Dockerfile on a server and returns the template's and the build's ids as `templateID` and `buildID`.

    Raises `ConfigError` for what is wrong in the file, `BuildFailed`, and what the server answers.
    """
    await asyncio.to_thread(read, order.dockerfile)
    client = ApiClient(address)
    try:
        return await _build(client, order, log)
    finally:
        await client.close()


async def _build(client: ApiClient, order: RemoteOrder, log: Log) -> dict[str, Any]:
    cpu, memory = order.resources.cpu, order.resources.memory
    wish = {"name": order.name, "cpuCount": max(round(cpu), 1) if cpu else None, "memoryMB": memory >> 20 if memory else None}
    requested = await client.request("POST", "/v3/templates", dict[str, Any], wish)
    template, build = requested["templateID"], requested["buildID"]
    body = {
        "dockerfile": await asyncio.to_thread(order.dockerfile.read_text),
        "context": await _upload(client, template, order, log),
        "target": order.target,
        "args": dict(order.args),
        "force": not order.cache,
        "startCmd": order.start,
        "readyCmd": order.ready,
    }
    await client.request("POST", f"/v2/templates/{template}/builds/{build}", object, body)
    await _follow(client, f"/templates/{template}/builds/{build}/status", log)
    return requested


async def _follow(client: ApiClient, path: str, log: Log) -> None:
    """Tells what the build says until it is ready. Raises `BuildFailed`."""
    told = 0
    while True:
        state = await client.request("GET", f"{path}?logsOffset={told}&limit={PAGE}", dict[str, Any])
        entries = state["logEntries"]
        for entry in entries:
            log(BuildLine(entry["message"], entry["level"], entry.get("step", "")))
        told += len(entries)
        if state["status"] == "error":
            reason = state.get("reason") or {}
            raise BuildFailed(reason.get("message", "it failed").rstrip("."), step=reason.get("step") or "")
        if state["status"] == "ready":
            return
        if len(entries) < PAGE:
            await asyncio.sleep(PAUSE)


async def _upload(client: ApiClient, template: str, order: RemoteOrder, log: Log) -> str:
    """The hash of the directory's files, which the server has when this returns."""
    material = await asyncio.to_thread(Material.of_directory, order.directory, order.dockerfile)
    selection = await asyncio.to_thread(select, order.directory, ["."], material.ignored)
    name = await asyncio.to_thread(selection.digest)
    link = await client.request("GET", f"/templates/{template}/files/{name}", dict[str, Any])
    if not link["present"]:
        log(BuildLine(f"Uploading {len(selection.entries)} files"))
        await asyncio.to_thread(_send, selection, link["url"])
    return name


def _send(selection: Selection, url: str) -> None:
    with tempfile.TemporaryFile() as file:
        selection.pack(file, mode=None, owners=False)
        size = file.tell()
        file.seek(0)
        try:
            httpx.put(url, content=file, headers={"Content-Length": str(size)}, timeout=httpx.Timeout(60.0, write=None)).raise_for_status()
        except httpx.HTTPError as error:
            raise InfrastructureError(f"the files could not be uploaded: {error or type(error).__name__}.", remedy="Try again.") from error
