"""Two tenants cannot see or touch each other in any route, nor can a key do more than its role: the server's own document is walked.

A route that is added is walked at once, with no list here to forget it in: one whose path has a place that these tests know nothing for,
or that does not answer as it must, fails them.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.conditions import needs_namespaces
from tests.server.conftest import RunningServer

from agentenv.sandbox.remote.wire import PREFIX
from agentenv.server.access import Role
from agentenv.server.envd.wire import filesystem_pb2, process_pb2
from agentenv.server.nodeapi.calls import CALLS

pytestmark = [needs_namespaces, pytest.mark.timeout(240)]

OPEN = frozenset({"/health", "/health/live", "/health/ready"})
"""Routes without a key."""

LINK = "/templates/{templateID}/files/{hash}/content"
"""The route whose credential is the link itself."""

HASH = "0a" * 32

BODIES: dict[str, dict[str, Any]] = {
    "POST /sandboxes": {"templateID": "{templateID}"},
    "POST /v2/sandboxes": {"templateID": "{snapshot}"},
    "POST /node/v1/sandboxes": {"snapshot": "{snapshot}"},
    "POST /sandboxes/{sandboxID}/timeout": {"timeout": 50},
    "POST /sandboxes/{sandboxID}/connect": {"timeout": 50},
    "POST /v2/sandboxes/{sandboxID}/connect": {"timeout": 50},
    "PUT /sandboxes/{sandboxID}/network": {"allow_internet_access": False},
    "POST /api-keys": {"name": "n"},
    "PATCH /api-keys/{apiKeyID}": {"name": "taken-over"},
    "POST /admin/tenants": {"name": "new-tenant"},
    "PATCH /admin/tenants/{tenantID}": {"sandboxes": 0},
    "POST /admin/tenants/{tenantID}/api-keys": {"name": "n"},
    "POST /templates": {"dockerfile": "FROM host"},
    "POST /templates/{templateID}": {"dockerfile": "FROM host"},
    "POST /v2/templates": {"name": "of-the-attacker"},
    "POST /v3/templates": {"name": "of-the-attacker"},
    "POST /v2/templates/{templateID}/builds/{buildID}": {"fromImage": "host"},
    "PATCH /templates/{templateID}": {"public": True},
    "PATCH /v2/templates/{templateID}": {"public": True},
    "POST /templates/tags": {"target": "{templateID}", "tags": ["mine"]},
    "DELETE /templates/tags": {"name": "{templateID}", "tags": ["default"]},
}
"""What is sent; the other routes that change something take a body of nothing."""

NAMES_ANOTHERS = frozenset(route for route, body in BODIES.items() if "{" in json.dumps(body).replace('{"', ""))
"""Routes that name something of the victim in the body."""


@dataclass(frozen=True)
class Route:
    """One operation of the OpenAPI document."""

    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def names_anothers(self) -> bool:
        """Whether a request to it says what of the victim's it is about."""
        return "{" in self.path or str(self) in NAMES_ANOTHERS


@dataclass(frozen=True)
class Two:
    """A tenant with one of each thing, and another that has nothing."""

    server: RunningServer
    victim: httpx.Client
    attacker: httpx.Client
    onlooker: httpx.Client
    ids: dict[str, str]
    routes: list[Route]

    def send(self, client: httpx.Client, route: Route, **others: str) -> httpx.Response:
        """A request to a route, with the victim's ids wherever there is a place for one."""
        ids = self.ids | {"nodeID": "node", "runID": "run", "call": "usage", "hash": HASH} | others
        path = route.path.format_map(ids)
        body = json.dumps(BODIES.get(str(route), {}))
        for name, identifier in ids.items():
            body = body.replace(f"{{{name}}}", identifier)
        query = {"sandbox_ids": f"{ids['sandboxID']},{ids['paused']}", "sandboxID": ids["sandboxID"], "tenant": ids["tenantID"]}
        query |= {"expires": "9999999999", "signature": "forged"} if route.path == LINK else {}
        content = None if route.method == "GET" else body
        reads = route.method == "GET" or route.path == LINK
        return client.request(
            route.method, path, params=query if reads else None, content=content, headers={"content-type": "application/json"}
        )

    def state(self) -> object:
        """All that the victim has, as itself sees it."""
        assert self.victim.put(f"{PREFIX}/leases/{self.ids['leaseID']}").status_code == 204
        return (
            [{**self.victim.get(f"/sandboxes/{self.ids[name]}").json(), "endAt": None} for name in ("sandboxID", "paused")],
            self.victim.get(f"/sandboxes/{self.ids['sandboxID']}/network").json(),
            self.victim.get("/snapshots").json(),
            self.victim.get("/templates").json(),
            self.victim.get(f"/templates/{self.ids['templateID']}/builds/{self.ids['buildID']}/status").json(),
            [{**key, "lastUsed": None} for key in self.victim.get("/api-keys").json()],
            self.victim.get("/whoami").json(),
        )


@pytest.fixture(scope="module")
def two(server: RunningServer) -> Iterator[Two]:
    document = httpx.get(f"{server.url}/openapi.json", timeout=60).json()
    routes = [Route(method.upper(), path) for path, item in document["paths"].items() for method in item]
    victim, (victims_key,) = server.new_tenant("walked-victim", Role.ADMIN)
    _, (attackers_key, onlookers_key) = server.new_tenant("walked-attacker", Role.ADMIN, Role.READ_ONLY)
    with server.client(victims_key) as mine, server.client(attackers_key) as theirs, server.client(onlookers_key) as onlooker:
        lease = mine.post(f"{PREFIX}/leases").json()
        running = mine.post("/sandboxes", json={"templateID": "base", "timeout": 900, "network": {"allowPublicTraffic": False}}).json()
        paused = mine.post("/sandboxes", json={"templateID": "base"}).json()
        mine.post(f"/sandboxes/{paused['sandboxID']}/pause", json={"memory": False})
        snapshot = mine.post(f"/sandboxes/{running['sandboxID']}/snapshots", json={"name": "walked-private"}).json()
        build = mine.post("/v3/templates", json={"name": "walked-template"}).json()
        ids = {
            "sandboxID": running["sandboxID"],
            "paused": paused["sandboxID"],
            "token": running["envdAccessToken"],
            "traffic": running["trafficAccessToken"],
            "snapshotID": snapshot["snapshotID"],
            "snapshot": server.services.catalogue.find(victim.id, "walked-private").id,
            "templateID": build["templateID"],
            "alias": build["names"][0],
            "buildID": build["buildID"],
            "apiKeyID": mine.get("/api-keys").json()[0]["id"],
            "tenantID": victim.id,
            "leaseID": lease["id"],
        }
        yield Two(server, mine, theirs, onlooker, ids, routes)
        for path in (
            f"/sandboxes/{ids['sandboxID']}",
            f"/sandboxes/{ids['paused']}",
            "/snapshots/walked-private",
            "/templates/walked-template",
        ):
            assert mine.delete(path).status_code == 204
        for one in theirs.get("/templates").json():
            theirs.delete(f"/templates/{one['templateID']}")


def test_another_tenant_neither_sees_nor_touches(two: Two) -> None:
    before = two.state()
    assert len(two.routes) > 70
    for route in two.routes:
        answer = two.send(two.attacker, route)
        assert answer.status_code < 500, f"{route}: {answer.text}"
        if route.names_anothers:
            assert answer.status_code in ((401,) if route.path == LINK else (403, 404)), f"{route}: {answer.status_code} {answer.text}"
        sent = f"{answer.request.url} {answer.request.content.decode()}"
        for secret in two.ids.values():
            # An error may repeat what was asked for.
            assert secret not in answer.text or (answer.is_error and secret in sent), f"{route} told {secret}"
        if route.method != "GET":
            assert two.state() == before, f"{route} changed something"


def test_nothing_without_a_key(two: Two) -> None:
    wrong = ({}, {"X-API-Key": "wrong"}, {"X-API-Key": two.ids["token"]}, {"Authorization": f"Bearer {two.ids['traffic']}"})
    with httpx.Client(base_url=two.server.url, timeout=60) as nobody:
        for headers in wrong:
            nobody.headers = httpx.Headers(headers)
            for route in two.routes:
                if route.path not in OPEN:
                    answer = two.send(nobody, route)
                    assert (answer.status_code, answer.json()["code"]) == (401, 401), f"{route}: {answer.text}"


def test_a_read_only_key_changes_nothing(two: Two) -> None:
    for route in two.routes:
        if route.method != "GET" and route.path not in OPEN | {LINK}:
            assert two.send(two.onlooker, route).status_code == 403, str(route)


def test_no_call_reaches_anothers_sandbox(two: Two) -> None:
    before = two.state()
    for call in CALLS:
        for sandbox in ("sandboxID", "paused"):
            answer = two.attacker.post(f"{PREFIX}/sandboxes/{two.ids[sandbox]}/calls/{call}", json={})
            assert answer.status_code == 404, f"{call}: {answer.text}"
    assert two.state() == before


def test_nothing_starts_from_what_is_anothers(two: Two) -> None:
    of_another = (two.ids["snapshot"], two.ids["templateID"])
    mine = two.attacker.post("/v3/templates", json={"name": "walked-own"}).json()
    own = f"/v2/templates/{mine['templateID']}/builds"
    for name in (*of_another, "walked-private", "walked-template"):
        starts = [
            two.attacker.post("/sandboxes", json={"templateID": name}),
            two.attacker.post(f"{PREFIX}/sandboxes", json={"snapshot": name}),
            two.attacker.post(f"{PREFIX}/sandboxes", json={"image": f"template:{name}"}),
            two.attacker.post(f"{own}/{mine['buildID']}", json={"fromTemplate": name}),
        ]
        assert [answer.status_code for answer in starts] == [404] * 4, name
    assert two.attacker.post(f"{own}/{two.ids['buildID']}", json={"fromImage": "host"}).status_code == 404
    assert two.attacker.delete(f"/templates/{mine['templateID']}").status_code == 204


def test_a_link_for_uploads_is_good_for_its_own_tenant_and_files_only(two: Two) -> None:
    mine = two.attacker.post("/v3/templates", json={"name": "walked-own"}).json()
    link = httpx.URL(two.attacker.get(f"/templates/{mine['templateID']}/files/{HASH}").json()["url"])
    forged = [
        link.copy_set_param("tenant", two.ids["tenantID"]),
        link.copy_set_param("expires", "9999999999"),
        link.copy_with(path=link.path.replace(HASH, "0b" * 32)),
        link.copy_with(path=link.path.replace(mine["templateID"], two.ids["templateID"])),
    ]
    assert [httpx.put(url, content=b"x").status_code for url in forged] == [401] * 4
    assert two.attacker.delete(f"/templates/{mine['templateID']}").status_code == 204


def test_nobody_is_let_into_anothers_sandbox(two: Two) -> None:
    """By its processes and files, by its ports, and by the tunnel to its agent; with another tenant's key and another sandbox's tokens."""
    own = two.attacker.post("/sandboxes", json={"templateID": "base", "timeout": 300}).json()
    tokens = {"X-Access-Token": own["envdAccessToken"], "e2b-traffic-access-token": own["trafficAccessToken"]}
    services = (process_pb2.DESCRIPTOR.services_by_name["Process"], filesystem_pb2.DESCRIPTOR.services_by_name["Filesystem"])
    methods = [("POST", f"/{service.full_name}/{method.name}") for service in services for method in service.methods]
    others = [("GET", "/files"), ("POST", "/files"), ("GET", "/metrics"), ("GET", "/envs"), ("POST", "/init")]
    reached = two.ids["sandboxID"]
    for method, path in (*methods, *others):
        for where in ({"e2b-sandbox-id": reached, "e2b-sandbox-port": "49983"}, {}):
            place = path if where else f"/proxy/{reached}/49983{path}"
            answer = two.attacker.request(method, place, params={"path": "/etc/passwd"}, headers={**tokens, **where})
            assert answer.status_code == 401, f"{method} {place}: {answer.text}"
            assert "root" not in answer.text
    for headers in (tokens, {"X-API-Key": "", "Authorization": ""}):
        assert two.attacker.get(f"/proxy/{reached}/8000/", headers=headers).status_code == 403
    assert two.attacker.delete(f"/sandboxes/{own['sandboxID']}").status_code == 204
    assert tunnel(two.server.url, reached, two.attacker.headers["X-API-Key"]).startswith(b"HTTP/1.1 404")
    assert tunnel(two.server.url, reached, two.onlooker.headers["X-API-Key"]).startswith(b"HTTP/1.1 403")
    assert tunnel(two.server.url, reached, own["envdAccessToken"]).startswith(b"HTTP/1.1 401")


def tunnel(url: str, sandbox: str, key: str) -> bytes:
    """The beginning of the answer to a request for the tunnel to an agent."""
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port), 30) as connection:
        lines = (f"GET {PREFIX}/sandboxes/{sandbox}/agent HTTP/1.1", "Host: x", f"X-API-Key: {key}", "Connection: Upgrade")
        connection.sendall("\r\n".join((*lines, "Upgrade: agentenv-agent", "", "")).encode())
        return connection.recv(100)
