"""Two tenants cannot see or touch each other, in any route of the OpenAPI document; nor can a key do more than its role."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from tests.conditions import needs_namespaces
from tests.server.conftest import RunningServer

from agentenv.server import app as application
from agentenv.server import control, faults
from agentenv.server.access import Role

pytestmark = needs_namespaces

OPEN = frozenset({"/health", "/health/live", "/health/ready"})
"""Routes without a key."""

BODIES: dict[str, dict[str, Any]] = {
    "/sandboxes/{sandboxID}/timeout": {"timeout": 50},
    "/sandboxes/{sandboxID}/connect": {"timeout": 50},
    "/v2/sandboxes/{sandboxID}/connect": {"timeout": 50},
    "/api-keys": {"name": "n"},
    "/api-keys/{apiKeyID}": {"name": "taken-over"},
    "/admin/tenants": {"name": "new-tenant"},
    "/admin/tenants/{tenantID}/api-keys": {"name": "n"},
    "/sandboxes": {"templateID": "{templateID}"},
    "/v2/sandboxes": {"templateID": "{templateID}"},
}


@dataclass(frozen=True)
class Route:
    """One operation of the OpenAPI document."""

    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def routes() -> list[Route]:
    """All operations, taken from the document itself."""
    app = FastAPI()
    faults.install(app)
    for part in (control.branching, control.health, control.history, control.keys, control.lists, control.sandboxes):
        app.include_router(part.router)
    for more in (control.administration, control.nodes):
        app.include_router(more.router)
    document = app.openapi()
    return [Route(method.upper(), path) for path, item in document["paths"].items() for method in item]


ROUTES = routes()


@dataclass(frozen=True)
class Two:
    """A tenant with a sandbox, a paused one, a snapshot and keys, and another that has nothing."""

    server: RunningServer
    victim: httpx.Client
    attacker: httpx.Client
    onlooker: httpx.Client
    ids: dict[str, str]

    def secrets(self) -> set[str]:
        """What the attacker must never see."""
        return set(self.ids.values()) - {"base"}


@pytest.fixture(scope="module")
def two(server: RunningServer) -> Iterator[Two]:
    victim, (victims_key,) = server.new_tenant("victim", Role.ADMIN)
    _, (attackers_key, onlookers_key) = server.new_tenant("attacker", Role.ADMIN, Role.READ_ONLY)
    with server.client(victims_key) as mine, server.client(attackers_key) as theirs, server.client(onlookers_key) as onlooker:
        running = mine.post("/sandboxes", json={"templateID": "base", "timeout": 900}).json()
        paused = mine.post("/sandboxes", json={"templateID": "base"}).json()
        mine.post(f"/sandboxes/{paused['sandboxID']}/pause")
        snapshot = mine.post(f"/sandboxes/{running['sandboxID']}/snapshots", json={"name": "private"}).json()
        template = server.services.catalogue.find(victim.id, "private").id
        key = mine.get("/api-keys").json()[0]["id"]
        ids = {
            "sandboxID": running["sandboxID"],
            "paused": paused["sandboxID"],
            "token": running["envdAccessToken"],
            "traffic": running["trafficAccessToken"],
            "snapshotID": snapshot["snapshotID"],
            "templateID": template,
            "apiKeyID": key,
            "tenantID": victim.id,
        }
        yield Two(server, mine, theirs, onlooker, ids)
        for sandbox in (ids["sandboxID"], ids["paused"]):
            assert mine.delete(f"/sandboxes/{sandbox}").status_code == 204
        assert mine.delete("/snapshots/private").status_code == 204


def send(client: httpx.Client, route: Route, ids: dict[str, str]) -> httpx.Response:
    """A request to a route, with the victim's ids wherever there is a place for one."""
    known = ids | {"nodeID": "node"}
    path = route.path.format_map(known)
    body = json.loads(json.dumps(BODIES.get(route.path, {})).replace("{templateID}", ids["templateID"]))
    query = {"sandbox_ids": f"{ids['sandboxID']},{ids['paused']}", "sandboxID": ids["sandboxID"], "tenant": ids["tenantID"]}
    if route.method in ("GET", "DELETE"):
        return client.request(route.method, path, params=query if route.method == "GET" else None)
    return client.request(route.method, path, json=body)


def state(two: Two) -> object:
    """All that the victim has, as itself sees it."""
    return (
        [{**two.victim.get(f"/sandboxes/{two.ids[name]}").json(), "endAt": None} for name in ("sandboxID", "paused")],
        two.victim.get("/snapshots").json(),
        [{**key, "lastUsed": None} for key in two.victim.get("/api-keys").json()],
        two.victim.get("/whoami").json(),
        two.victim.post("/sandboxes", json={"templateID": "no-such-template"}).status_code,
    )


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_another_tenant_neither_sees_nor_touches(two: Two, route: Route) -> None:
    before = state(two)
    answer = send(two.attacker, route, two.ids)
    assert answer.status_code < 500
    if "{" in route.path:
        assert answer.status_code in (403, 404), answer.text
    sent = f"{answer.request.url} {answer.request.content.decode()}"
    for secret in two.secrets():
        # An error may repeat what was asked for.
        assert secret not in answer.text or (answer.is_error and secret in sent), f"{route} told {secret}"
    assert state(two) == before


@pytest.mark.parametrize("route", [route for route in ROUTES if route.path not in OPEN], ids=str)
def test_nothing_without_a_key(two: Two, route: Route) -> None:
    with httpx.Client(base_url=two.server.url) as nobody:
        for headers in ({}, {"X-API-Key": "wrong"}, {"X-API-Key": two.ids["token"]}, {"Authorization": f"Bearer {two.ids['traffic']}"}):
            nobody.headers = httpx.Headers(headers)
            answer = send(nobody, route, two.ids)
            assert answer.status_code == 401
            assert answer.json()["code"] == 401


CHANGING = [route for route in ROUTES if route.method != "GET" and route.path not in OPEN]


@pytest.mark.parametrize("route", CHANGING, ids=str)
def test_a_read_only_key_changes_nothing(two: Two, route: Route) -> None:
    assert send(two.onlooker, route, two.ids).status_code == 403


def test_a_read_only_key_reads_but_gets_no_token(two: Two) -> None:
    _, (key,) = two.server.tenant, [two.victim.post("/api-keys", json={"name": "reader", "role": "read-only"}).json()]
    with two.server.client(key["key"]) as reader:
        shown = reader.get(f"/sandboxes/{two.ids['sandboxID']}")
        assert shown.status_code == 200
        assert two.ids["token"] not in shown.text
        assert two.ids["traffic"] not in shown.text
    assert two.victim.delete(f"/api-keys/{key['id']}").status_code == 204
    assert httpx.get(f"{two.server.url}/sandboxes", headers={"X-API-Key": key["key"]}).status_code == 401


def test_the_operator_administers_tenants_and_reads_the_audit_log(two: Two, client: httpx.Client) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    made = client.post("/admin/tenants", json={"name": name, "quotas": {"sandboxes": 1}})
    assert made.status_code == 201
    assert client.post("/admin/tenants", json={"name": name}).status_code == 409
    assert client.post("/admin/tenants", json={"name": "Not A Name"}).status_code == 400
    changed = client.patch(f"/admin/tenants/{name}", json={"memory": 5}).json()
    assert (changed["quotas"]["sandboxes"], changed["quotas"]["memory"]) == (1, 5)
    key = client.post(f"/admin/tenants/{name}/api-keys", json={"name": "k", "role": "admin"}).json()
    with two.server.client(key["key"]) as theirs:
        assert theirs.get("/whoami").json()["tenant"] == name
        assert theirs.get("/admin/tenants").status_code == 403
        assert theirs.post("/sandboxes", json={"templateID": "base"}).status_code == 429
    assert client.get(f"/admin/tenants/{name}/api-keys").json()[0]["lastUsed"] is not None
    assert client.delete(f"/admin/tenants/{name}/api-keys/{key['id']}").status_code == 204
    assert client.delete(f"/admin/tenants/{name}").status_code in (204, 409)
    log = client.get("/admin/audit", params={"limit": 50}).json()
    assert any(line["action"] == "PATCH /admin/tenants/{tenantID}" and line["target"] == name for line in log)
    assert any(line["status"] == 403 for line in log)
    assert client.delete("/admin/tenants/default").status_code == 409


def test_every_part_of_the_server_is_among_the_routes(server: RunningServer) -> None:
    document = httpx.get(f"{server.url}/openapi.json", timeout=60).json()
    own = {route.path for route in ROUTES}
    assert own <= set(document["paths"])
    assert len(application.PARTS) >= 1


UNOFFERED = ("/volumes", "/volumes/x", "/secrets", "/access-tokens", "/teams/x/metrics", "/admin/sandboxes/running-counts")


@pytest.mark.parametrize("path", UNOFFERED)
def test_what_is_not_offered_says_so(client: httpx.Client, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = client.request(method, path)
        assert answer.status_code == 501
        assert len(answer.json()["message"]) > 20


def test_health_needs_no_key(server: RunningServer) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 204
    assert httpx.get(f"{server.url}/health/live").status_code == 204
    assert httpx.get(f"{server.url}/health/ready").json()["ready"] is True


def test_the_machine_and_its_metrics_are_the_operators_to_see(client: httpx.Client) -> None:
    (node,) = client.get("/nodes").json()
    assert client.get(f"/nodes/{node['id']}").json()["id"] == node["id"]
    assert client.get("/nodes/other").status_code == 404
    text = client.get("/metrics").text
    assert "# HELP agentenv_server_sandboxes " in text
    assert 'agentenv_server_sandboxes{state="running"}' in text


def test_an_unknown_path_and_a_wrong_method_are_errors_like_the_others(client: httpx.Client) -> None:
    assert client.get("/no/such/path").json()["code"] == 404
    assert client.put("/sandboxes").json()["code"] == 405
