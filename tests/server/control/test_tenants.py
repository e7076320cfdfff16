"""Tenants and keys: what a role reads, what the operator administers, and what is said of routes that there are not."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from tests.conditions import needs_namespaces
from tests.server.conftest import RunningServer

from agentenv.server.access import Role

pytestmark = needs_namespaces


@dataclass(frozen=True)
class One:
    """A tenant with a sandbox."""

    server: RunningServer
    owner: httpx.Client
    ids: dict[str, str]


@pytest.fixture
def one(server: RunningServer) -> Iterator[One]:
    _, (key,) = server.new_tenant(f"t{uuid.uuid4().hex[:8]}", Role.ADMIN)
    with server.client(key) as mine:
        made = mine.post("/sandboxes", json={"templateID": "base", "timeout": 900}).json()
        yield One(server, mine, {"sandboxID": made["sandboxID"], "token": made["envdAccessToken"], "traffic": made["trafficAccessToken"]})
        assert mine.delete(f"/sandboxes/{made['sandboxID']}").status_code == 204


def test_a_read_only_key_reads_but_gets_no_token(one: One) -> None:
    key = one.owner.post("/api-keys", json={"name": "reader", "role": "read-only"}).json()
    with one.server.client(key["key"]) as reader:
        shown = reader.get(f"/sandboxes/{one.ids['sandboxID']}")
        assert shown.status_code == 200
        assert one.ids["token"] not in shown.text
        assert one.ids["traffic"] not in shown.text
    assert one.owner.delete(f"/api-keys/{key['id']}").status_code == 204
    assert httpx.get(f"{one.server.url}/sandboxes", headers={"X-API-Key": key["key"]}).status_code == 401


def test_the_operator_administers_tenants_and_reads_the_audit_log(server: RunningServer, client: httpx.Client) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    made = client.post("/admin/tenants", json={"name": name, "quotas": {"sandboxes": 1}})
    assert made.status_code == 201
    assert client.post("/admin/tenants", json={"name": name}).status_code == 409
    assert client.post("/admin/tenants", json={"name": "Not A Name"}).status_code == 400
    changed = client.patch(f"/admin/tenants/{name}", json={"memory": 5}).json()
    assert (changed["quotas"]["sandboxes"], changed["quotas"]["memory"]) == (1, 5)
    key = client.post(f"/admin/tenants/{name}/api-keys", json={"name": "k", "role": "admin"}).json()
    with server.client(key["key"]) as theirs:
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
