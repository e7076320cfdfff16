"""The proxy when the sandbox behind it is paused, goes back or ends."""

from __future__ import annotations

import httpx
import pytest
from tests.server.proxy.conftest import PORT, WEBSOCKET_PORT, OneSandbox, to
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from agentenv.sandbox import AsyncSandbox
from agentenv.server.envd.app import PORT as ENVD
from agentenv.server.fleet import State

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = {"x-access-token": "envd-token"}


async def test_a_sandbox_that_never_was(http: httpx.AsyncClient) -> None:
    for answer in (await http.get("/", headers=to(80) | {"e2b-sandbox-id": "other"}), await http.get("/proxy/other/49983/health")):
        assert (answer.status_code, answer.json()) == (502, {"code": 502, "message": "The sandbox was not found", "sandboxId": "other"})


async def test_traffic_wakes_a_paused_sandbox(http: httpx.AsyncClient, sandbox: AsyncSandbox, fleet: OneSandbox) -> None:
    async def pause() -> None:
        await sandbox.pause()
        fleet.change(state=State.PAUSED)

    await pause()
    assert (await http.get("/metrics", headers=to(ENVD))).status_code == 401
    health = await http.get("/health", headers=to(ENVD))
    assert (health.status_code, fleet.view.state) == (502, State.PAUSED)
    assert (await http.get("/metrics", headers=to(ENVD) | TOKEN)).status_code == 200
    await pause()
    assert (await http.get("/", headers=to(PORT))).status_code == 200


async def test_traffic_leaves_one_alone_that_must_not_be_woken(http: httpx.AsyncClient, sandbox: AsyncSandbox, fleet: OneSandbox) -> None:
    fleet.wakes = False
    fleet.change(state=State.PAUSED)
    assert (await http.get("/", headers=to(PORT))).status_code == 410
    envd = await http.get("/metrics", headers=to(ENVD) | TOKEN)
    assert (envd.status_code, "was not found" in envd.json()["message"]) == (502, True)


async def test_connections_belong_to_one_generation(http: httpx.AsyncClient, url: str, sandbox: AsyncSandbox) -> None:
    snapshot = await sandbox.snapshot(memory=False)
    assert (await http.get("/", headers=to(PORT))).status_code == 200
    async with connect(
        f"ws{url.removeprefix('http')}/", additional_headers=to(WEBSOCKET_PORT), subprotocols=[Subprotocol("chat")]
    ) as socket:
        await socket.recv()
        await sandbox.rollback(snapshot)
        with pytest.raises(ConnectionClosed):
            await socket.recv()
    assert (await http.get("/", headers=to(PORT))).status_code == 502
    assert (await http.get("/metrics", headers=to(ENVD) | TOKEN)).status_code == 200


async def test_a_sandbox_that_is_gone(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    await sandbox.kill()
    for port in (PORT, ENVD):
        gone = await http.get("/health", headers=to(port))
        assert (gone.status_code, "was not found" in gone.json()["message"]) == (502, True)
