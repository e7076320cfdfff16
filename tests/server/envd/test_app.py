"""The plain routes of the in-sandbox API, and what it says to those it does not have."""

from __future__ import annotations

import httpx
import pytest
from tests.server.envd.test_process_service import run, shell

from agentenv.sandbox import AsyncSandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.own_sandbox
async def test_health_follows_the_sandbox(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    assert (await http.get("/health")).status_code == 204
    await sandbox.pause()
    paused = await http.get("/health")
    assert (paused.status_code, "was not found" in paused.json()["message"]) == (502, True)
    await sandbox.resume()
    assert (await http.get("/health")).status_code == 204
    await sandbox.kill()
    assert (await http.get("/health")).status_code == 502


@pytest.mark.own_sandbox
async def test_metrics(http: httpx.AsyncClient) -> None:
    first = (await http.get("/metrics")).json()
    assert first.keys() == {
        *(
            "ts",
            "cpu_count",
            "cpu_used_pct",
            "mem_total",
            "mem_used",
            "mem_cache",
            "mem_total_mib",
            "mem_used_mib",
            "disk_used",
            "disk_total",
        )
    }
    assert 0 < first["mem_used"] < first["mem_total"]
    await run(http, shell("timeout 0.3 sh -c 'while :; do :; done'"))
    assert 0 < (await http.get("/metrics")).json()["cpu_used_pct"] <= 100


async def test_init_sets_the_defaults(http: httpx.AsyncClient) -> None:
    wishes = {"envVars": {"A": "b c"}, "defaultUser": "ada", "defaultWorkdir": "/opt", "timestamp": "2026-01-01T00:00:00Z"}
    assert (await http.post("/init", json=wishes)).status_code == 204
    out, _, _ = await run(http, shell("echo $A; id -un; pwd"))
    assert out == b"b c\nada\n/opt\n"
    assert (await http.get("/envs")).json()["A"] == "b c"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"envVars": {"A": 1}}, 400),
        ({"envVars": {"": "x"}}, 400),
        ({"envVars": {"A": "x\0"}}, 400),
        ([], 400),
        ({"accessToken": "mine"}, 501),
        ({"volumeMounts": [{"path": "/x"}]}, 501),
    ],
)
async def test_init_refuses_what_it_cannot_do(http: httpx.AsyncClient, body: object, status: int) -> None:
    answer = await http.post("/init", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, status)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/files/compose", 501),
        ("POST", "/freeze", 501),
        ("GET", "/nothing", 404),
        ("DELETE", "/files", 405),
        ("POST", "/process.Process/Nothing", 501),
        ("POST", "/process.Other/List", 404),
    ],
)
async def test_what_is_not_here_says_so(http: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    answer = await http.request(method, path, json={})
    assert (answer.status_code, bool(answer.json()["message"])) == (status, True)


async def test_a_secured_sandbox_wants_its_token(secured: httpx.AsyncClient) -> None:
    for path in ("/metrics", "/envs", "/files"):
        assert (await secured.get(path)).status_code == 401
        assert (await secured.get(path, headers={"x-access-token": "wrong"})).status_code == 401
    assert (await secured.post("/init", json={"accessToken": "secret"})).status_code == 401
    assert (await secured.post("/process.Process/List", json={})).status_code == 401
    assert (await secured.get("/metrics", headers={"x-access-token": "secret"})).status_code == 200
    assert (await secured.post("/init", json={"accessToken": "secret"}, headers={"x-access-token": "secret"})).status_code == 204
