"""Many clients at once that do this and that and leave in the middle: the server lives, and nothing is left of them."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest
from tests.conditions import more_in_soak, needs_namespaces
from tests.server.conftest import RunningServer, StartServer

pytestmark = [needs_namespaces, pytest.mark.timeout(900)]

EXPECTED = {200, 201, 204, 404, 409, 429}


async def client(server: RunningServer, seed: int, answers: list[int]) -> None:
    """One client's life: it may break off a request that is under way, and leaves sandboxes behind."""
    chance = random.Random(seed)
    mine: list[str] = []
    async with httpx.AsyncClient(base_url=server.url, headers={"X-API-Key": server.key}, timeout=300) as http:
        for _ in range(4):
            path = f"/sandboxes/{chance.choice(mine)}" if mine else ""
            match chance.choice(["create", "pause", "connect", "fork", "kill"]) if mine else "create":
                case "create":
                    request = http.post("/v2/sandboxes", json={"templateID": "base", "timeout": chance.choice([1, 600])})
                case "kill":
                    request = http.delete(path)
                case "fork":
                    request = http.post(f"{path}/fork", json={"count": 2, "timeout": 600})
                case "connect":
                    request = http.post(f"/v2{path}/connect", json={"timeout": 600})
                case _:
                    request = http.post(f"{path}/pause", json={"memory": chance.random() < 0.5})
            try:
                async with asyncio.timeout(chance.choice([0.05, 300, 300])):
                    answer = await request
            except TimeoutError:
                continue
            answers.append(answer.status_code)
            if answer.status_code == 201 and answer.request.url.path == "/v2/sandboxes":
                mine.append(answer.json()["sandboxID"])


@pytest.mark.parametrize("crowd", more_in_soak([16], [200]))
def test_a_crowd_leaves_nothing_behind(start_server: StartServer, crowd: int) -> None:
    server = start_server({"sandboxes.internet": False})
    answers: list[int] = []

    async def come() -> None:
        await asyncio.gather(*(client(server, seed, answers) for seed in range(crowd)))

    asyncio.run(come())
    assert set(answers) <= EXPECTED
    assert answers.count(201) >= crowd // 2
    with server.client() as http:
        while http.get("/nodes").json()[0]["counts"]["starting"]:
            pass
        while left := http.get("/v2/sandboxes").json():
            for one in left:
                assert http.delete(f"/sandboxes/{one['sandboxID']}").status_code in (204, 404)
        assert http.get("/health/ready").json()["ready"] is True
        usage = http.get("/whoami").json()["usage"]
        assert {name: used for name, used in usage.items() if used and name != "templates"} == {}
        counts = http.get("/nodes").json()[0]["counts"]
        assert {name: count for name, count in counts.items() if count} == {}
        assert http.post("/admin/gc").status_code == 200
    owner = server.fleet.node.owner.directory
    assert [path.name for path in owner.glob("sb*")] == []
    assert [record for record in server.fleet.node.list() if record.owner == owner.name] == []
    assert list((server.services.home / "snapshots" / "tree").glob("*.json")) == []
