"""Sandboxes over HTTP, on a real server with real sandboxes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import httpx
import pytest
from tests.conditions import needs_namespaces, needs_root
from tests.server.conftest import RunningServer, StartServer

from agentenv.egress.policy import EgressPolicy
from agentenv.isolation import probe_all
from agentenv.node import NetworkRequest
from agentenv.sandbox.sync import Sandbox
from agentenv.server.access import Quotas, Role

pytestmark = needs_namespaces

_GVISOR = next(probe for probe in probe_all() if probe.backend == "gvisor")
needs_gvisor = pytest.mark.skipif(not _GVISOR.usable, reason=f"no sandboxes of gVisor here: {_GVISOR.reason}")


@pytest.fixture(autouse=True)
def tidy(server: RunningServer, client: httpx.Client) -> Iterator[None]:
    """Each test finds a server without sandboxes."""
    yield
    for one in client.get("/v2/sandboxes").json():
        client.delete(f"/sandboxes/{one['sandboxID']}")


def create(client: httpx.Client, **fields: object) -> str:
    answer = client.post("/v2/sandboxes", json={"templateID": "base", **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["sandboxID"])


def run(server: RunningServer, sandbox: str, command: str) -> str:
    """The output of a command in a sandbox."""

    async def inside() -> str:
        return (await (await server.fleet.running(sandbox)).commands.run(command, check=True)).stdout

    return server.wait(inside())


def test_a_created_sandbox_has_all_that_a_client_needs(client: httpx.Client) -> None:
    answer = client.post("/sandboxes", json={"templateID": "base", "timeout": 40, "metadata": {"a": "b"}, "allow_internet_access": False})
    told = answer.json()
    assert answer.status_code == 201
    uuid.UUID(told["sandboxID"])
    assert told["envdAccessToken"] != told["trafficAccessToken"]
    shown = client.get(f"/sandboxes/{told['sandboxID']}").json()
    assert (shown["state"], shown["metadata"], shown["alias"]) == ("running", {"a": "b"}, "base")
    assert shown["allowInternetAccess"] is False
    assert shown["lifecycle"] == {"autoResume": False, "onTimeout": "kill"}
    assert shown["cpuCount"] >= 1
    assert shown["memoryMB"] >= 128


def test_its_files_and_memory_survive_a_pause(server: RunningServer, client: httpx.Client) -> None:
    sandbox = create(client)
    run(server, sandbox, "echo kept > /root/file; sleep 1000 & echo $! > /root/pid")
    assert client.post(f"/sandboxes/{sandbox}/pause").status_code == 204
    assert (
        client.get(f"/sandboxes/{sandbox}").json() | {"state": "paused", "pauseMode": "full"} == client.get(f"/sandboxes/{sandbox}").json()
    )
    assert client.post(f"/sandboxes/{sandbox}/pause").status_code == 409
    assert client.post(f"/sandboxes/{sandbox}/resume", json={"timeout": 60}).status_code == 201
    assert run(server, sandbox, "cat /root/file; kill -0 $(cat /root/pid) && echo alive") == "kept\nalive\n"
    assert client.post(f"/sandboxes/{sandbox}/resume", json={}).status_code == 409


def test_a_pause_without_memory_keeps_the_files_only(server: RunningServer, client: httpx.Client) -> None:
    sandbox = create(client)
    run(server, sandbox, "echo kept > /root/file; sleep 1000 & echo $! > /root/pid")
    assert client.post(f"/sandboxes/{sandbox}/pause", json={"memory": False}).status_code == 204
    assert client.get(f"/sandboxes/{sandbox}").json()["pauseMode"] == "filesystem"
    answer = client.post(f"/v2/sandboxes/{sandbox}/connect", json={})
    assert answer.status_code == 201
    assert run(server, sandbox, "cat /root/file; kill -0 $(cat /root/pid) 2>/dev/null || echo gone") == "kept\ngone\n"
    told = client.get(f"/v2/sandboxes/{sandbox}/logs").json()["logs"]
    assert [line["fields"].get("lost") for line in told if line["message"] == "resumed"] == ["memory and processes"]


def test_connecting_extends_the_time_and_never_shortens_it(client: httpx.Client) -> None:
    sandbox = create(client, timeout=100)

    def end() -> str:
        return str(client.get(f"/sandboxes/{sandbox}").json()["endAt"])

    first = end()
    assert client.post(f"/sandboxes/{sandbox}/connect", json={"timeout": 50}).status_code == 200
    assert client.post(f"/sandboxes/{sandbox}/refreshes", json={"duration": 10}).status_code == 204
    assert abs_difference(first, end()) < 1
    assert client.post(f"/sandboxes/{sandbox}/connect", json={"timeout": 200}).status_code == 200
    assert abs_difference(first, end()) > 50
    assert client.post(f"/sandboxes/{sandbox}/timeout", json={"timeout": 5}).status_code == 204
    assert end() < first


def abs_difference(first: str, second: str) -> float:
    """Seconds between two times of JSON."""
    return abs((datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds())


def wait_until_gone(client: httpx.Client, sandbox: str, *, status: int = 404) -> httpx.Response:
    """The answer once it has that status, or says so; the test's own timeout ends a wait in vain."""
    while True:
        answer = client.get(f"/sandboxes/{sandbox}")
        if answer.status_code == status or answer.json().get("state") == "paused":
            return answer


def past_reason(server: RunningServer, sandbox: str) -> str:
    """Why a sandbox ended, once that is written down; it is gone a moment before."""
    while True:
        for past in server.wait(server.fleet.past(server.tenant)):
            if past.id == sandbox:
                return past.reason


def test_its_time_over_it_ends_and_the_log_says_why(server: RunningServer, client: httpx.Client) -> None:
    sandbox = create(client, timeout=0)
    wait_until_gone(client, sandbox)
    (line,) = [one for one in server.wait(server.fleet.logbook.read(sandbox)) if one.message == "ended"]
    assert line.fields["reason"] == "its time was over"
    assert past_reason(server, sandbox) == "its time was over"


def test_its_time_over_it_is_paused_where_that_was_asked_for_and_woken_by_traffic(server: RunningServer, client: httpx.Client) -> None:
    sandbox = create(client, timeout=1, autoPause=True, autoResume={"enabled": True})
    run(server, sandbox, "echo kept > /root/file")
    assert wait_until_gone(client, sandbox).json()["state"] == "paused"
    assert run(server, sandbox, "cat /root/file") == "kept\n"
    assert client.get(f"/sandboxes/{sandbox}").json()["state"] == "running"


def test_deleting_works_in_every_state_and_once(client: httpx.Client) -> None:
    running, paused, on_disk = (create(client) for _ in range(3))
    client.post(f"/sandboxes/{paused}/pause")
    client.post(f"/sandboxes/{on_disk}/pause", json={"memory": False})
    for sandbox in (running, paused, on_disk):
        assert client.delete(f"/sandboxes/{sandbox}").status_code == 204
        for answer in (
            client.delete(f"/sandboxes/{sandbox}"),
            client.get(f"/sandboxes/{sandbox}"),
            client.post(f"/sandboxes/{sandbox}/pause"),
        ):
            assert answer.status_code == 404
            assert answer.json()["code"] == 404


def test_a_sandbox_that_died_is_gone_with_the_reason(server: RunningServer, client: httpx.Client) -> None:
    sandbox = create(client)
    machine = server.fleet.record(sandbox).machine
    assert machine is not None

    async def murder() -> None:
        await server.fleet.node.kill(machine)

    server.wait(murder())
    wait_until_gone(client, sandbox)
    assert past_reason(server, sandbox)


def test_the_same_idempotency_key_makes_one_sandbox(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "a-key-of-this-test"}

    def post(timeout: int) -> httpx.Response:
        return client.post("/v2/sandboxes", json={"templateID": "base", "timeout": timeout}, headers=headers)

    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(post, [77] * 4))
    assert {answer.status_code for answer in made} == {201}
    assert len({answer.json()["sandboxID"] for answer in made}) == 1
    assert post(78).status_code == 422
    client.delete(f"/sandboxes/{made[0].json()['sandboxID']}")
    assert post(77).status_code == 409


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"templateID": "nothing-like-it"}, 404),
        ({"templateID": ""}, 400),
        ({}, 400),
        ({"templateID": "base", "timeout": -1}, 400),
        ({"templateID": "base", "timeout": 10**8}, 400),
        ({"templateID": "base", "metadata": {"a": 1}}, 400),
        ({"templateID": "base", "cpuCount": 4000}, 400),
        ({"templateID": "base", "volumeMounts": [{"name": "v", "path": "/v"}]}, 501),
        ({"templateID": "base", "mcp": {"browser": {}}}, 501),
        ({"templateID": "base", "network": {"egressProxy": {"address": "a:1"}}}, 501),
    ],
)
def test_what_cannot_be_had_is_refused_with_a_reason(client: httpx.Client, body: dict[str, object], status: int) -> None:
    answer = client.post("/sandboxes", json=body)
    assert answer.status_code == status
    assert answer.json()["code"] == status
    assert len(answer.json()["message"]) > 10
    assert client.get("/v2/sandboxes").json() == []


def test_lists_are_filtered_ordered_and_paged(client: httpx.Client) -> None:
    made = [create(client, metadata={"n": str(number), "odd": str(number % 2)}) for number in range(5)]
    client.post(f"/sandboxes/{made[0]}/pause")

    def ids(**query: object) -> list[str]:
        return [one["sandboxID"] for one in client.get("/v2/sandboxes", params=query).json()]  # type: ignore[arg-type]

    assert ids() == made[::-1]
    assert ids(order="asc") == made
    assert ids(metadata="odd=1") == [made[3], made[1]]
    assert ids(state="paused") == [made[0]]
    assert ids(state="running,paused", template="base", limit=100) == made[::-1]
    first = client.get("/v2/sandboxes", params={"limit": 3})
    rest = client.get("/v2/sandboxes", params={"limit": 3, "nextToken": first.headers["x-next-token"]})
    assert [one["sandboxID"] for one in first.json() + rest.json()] == made[::-1]
    assert "x-next-token" not in rest.headers
    assert first.headers["x-total-running"] == "4"
    assert [one["sandboxID"] for one in client.get("/sandboxes").json()] == made[:0:-1]
    assert client.get("/v2/sandboxes", params={"state": "dead"}).status_code == 400
    assert client.get("/v2/sandboxes", params={"nextToken": "x"}).status_code == 400


def test_metrics_and_logs_tell_what_happened(server: RunningServer, client: httpx.Client) -> None:
    sandbox = create(client)
    run(server, sandbox, "head -c 3000000 /dev/urandom > /root/big")
    (metric, *_) = client.get(f"/sandboxes/{sandbox}/metrics").json()
    assert metric["memTotal"] == client.get(f"/sandboxes/{sandbox}").json()["memoryMB"] << 20
    assert client.get(f"/sandboxes/{sandbox}/metrics", params={"start": int(time.time()) + 100}).json() == []
    latest = client.get("/sandboxes/metrics", params={"sandbox_ids": f"{sandbox},{uuid.uuid4()}"}).json()["sandboxes"]
    assert list(latest) == [sandbox]
    client.post(f"/sandboxes/{sandbox}/pause")
    lines = client.get(f"/v2/sandboxes/{sandbox}/logs").json()["logs"]
    assert [line["message"] for line in lines] == ["created", "paused"]
    backward = client.get(f"/v2/sandboxes/{sandbox}/logs", params={"direction": "backward", "limit": 1}).json()["logs"]
    assert [line["message"] for line in backward] == ["paused"]
    assert client.get(f"/v2/sandboxes/{sandbox}/logs", params={"search": "Paused"}).json()["logs"] == []
    assert client.get(f"/v2/sandboxes/{sandbox}/logs", params={"level": "error"}).json()["logs"] == []
    assert client.get(f"/sandboxes/{sandbox}/logs").json()["logs"][0]["line"].startswith("created template=base")


def test_forks_have_the_files_and_nothing_else_in_common(server: RunningServer, client: httpx.Client) -> None:
    sandbox = create(client, metadata={"a": "b"})
    run(server, sandbox, "echo kept > /root/file")
    answer = client.post(f"/sandboxes/{sandbox}/fork", json={"count": 3, "timeout": 60})
    assert answer.status_code == 201
    children = [one["sandbox"] for one in answer.json()]
    assert len({child["envdAccessToken"] for child in children} | {child["trafficAccessToken"] for child in children}) == 6
    for child in children:
        assert run(server, child["sandboxID"], "cat /root/file; echo changed > /root/file") == "kept\n"
        assert client.get(f"/sandboxes/{child['sandboxID']}").json()["parentID"] == sandbox
    assert run(server, sandbox, "cat /root/file") == "kept\n"
    client.post(f"/sandboxes/{sandbox}/pause")
    assert client.post(f"/sandboxes/{sandbox}/fork").status_code == 409


def test_a_fork_beyond_the_quota_is_an_error_of_its_own(server: RunningServer) -> None:
    _, (key,) = server.new_tenant("forker", Role.USER, quotas=Quotas(sandboxes=2))
    with server.client(key) as client:
        sandbox = create(client)
        answers = client.post(f"/sandboxes/{sandbox}/fork", json={"count": 2}).json()
        assert [("sandbox" in one, one.get("error", {}).get("code")) for one in answers] == [(True, None), (False, 429)]
        refused = client.post("/sandboxes", json={"templateID": "base"})
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) > 0
        client.delete(f"/sandboxes/{sandbox}")
        client.delete(f"/sandboxes/{answers[0]['sandbox']['sandboxID']}")


def test_a_snapshot_outlives_its_source(server: RunningServer, client: httpx.Client) -> None:
    sandbox = create(client)
    run(server, sandbox, "echo first > /root/file")
    kept = client.post(f"/sandboxes/{sandbox}/snapshots", json={"name": "work"}).json()
    run(server, sandbox, "echo second > /root/file")
    again = client.post(f"/sandboxes/{sandbox}/snapshots", json={"name": "work:v2"}).json()
    unnamed = client.post(f"/sandboxes/{sandbox}/snapshots").json()
    client.delete(f"/sandboxes/{sandbox}")
    assert (kept["snapshotID"], again["snapshotID"]) == ("work:default", "work:v2")
    for reference, content in (("work:default", "first"), ("work", "first"), ("work:v2", "second"), (unnamed["snapshotID"], "second")):
        assert run(server, create(client, templateID=reference), "cat /root/file").strip() == content
    listed = client.get("/snapshots", params={"sandboxID": sandbox}).json()
    assert len(listed) == 2
    assert [one["names"] for one in client.get("/snapshots", params={"name": "work:v2"}).json()] == [["work:default", "work:v2"]]
    for reference in ("work", unnamed["snapshotID"]):
        assert client.delete(f"/snapshots/{reference}").status_code == 204
        assert client.delete(f"/snapshots/{reference}").status_code == 404
    assert client.post("/sandboxes", json={"templateID": "work"}).status_code == 404


def test_keeps_a_pool_ready_and_hands_out_what_nobody_has_used(start_server: StartServer) -> None:
    server = start_server({"pools": {"base": 2}})

    def fill(client: httpx.Client) -> None:
        while client.get("/nodes").json()[0]["counts"]["pooled"] < 2:
            pass

    with server.client() as client:
        fill(client)
        first, second = create(client, metadata={"a": "b"}), create(client, envVars={"COLOUR": "blue"})
        assert server.fleet.record(first).machine != server.fleet.record(second).machine
        assert server.fleet.record(second).env == {"COLOUR": "blue"}
        fill(client)
        other = create(client, memoryMB=256)
        assert server.fleet.count()["pooled"] == 2
        assert server.fleet.record(other).resources.memory == 256 << 20


def test_idle_sandboxes_are_paused_and_then_removed(start_server: StartServer) -> None:
    server = start_server({"idle.pause_after": 0.2, "idle.remove_after": 0.2})
    with server.client() as client:
        sandbox = create(client)
        wait_until_gone(client, sandbox)
        while client.get(f"/sandboxes/{sandbox}").status_code != 404:
            pass
    reasons = [line.fields["reason"] for line in server.wait(server.fleet.logbook.read(sandbox)) if "reason" in line.fields]
    assert reasons[0].startswith("nobody has used it for")
    assert reasons[1].startswith("it was paused for")


def test_what_is_in_use_is_not_idle(start_server: StartServer) -> None:
    server = start_server({"idle.pause_after": 0.05})
    with server.client() as client:
        sandbox = create(client)
        with server.fleet.in_use(sandbox):
            server.wait(server.fleet._housekeeping.round())
            server.wait(server.fleet._housekeeping.round())
            assert client.get(f"/sandboxes/{sandbox}").json()["state"] == "running"
        assert wait_until_gone(client, sandbox).json()["state"] == "paused"


@needs_root
def test_rules_for_the_network_are_kept_and_change_while_it_runs(server: RunningServer, client: httpx.Client) -> None:
    rules = {"allowOut": ["example.com", "8.8.8.8"], "denyOut": ["0.0.0.0/0", "::/0"]}
    sandbox = create(client, network=rules)

    def policy() -> EgressPolicy:
        machine = server.fleet.machine(sandbox)
        assert machine is not None
        return machine.request.network.policy

    assert policy() == EgressPolicy.of(True, rules["allowOut"], ["0.0.0.0/0"])
    assert client.put(f"/sandboxes/{sandbox}/network", json={"allow_internet_access": False}).status_code == 204
    assert policy() == EgressPolicy.of(False)
    client.post(f"/sandboxes/{sandbox}/pause", json={"memory": False})
    assert client.put(f"/sandboxes/{sandbox}/network", json={}).status_code == 409
    client.post(f"/v2/sandboxes/{sandbox}/connect", json={})
    assert policy() == EgressPolicy.of(False)
    assert run(server, sandbox, "timeout 5 sh -c 'cat < /dev/null > /dev/tcp/1.1.1.1/80' 2>/dev/null || echo refused") == "refused\n"
    assert client.get(f"/sandboxes/{sandbox}/network").json()["allowInternetAccess"] is False
    for wrong in ({"allowOut": ["10.0.0.0/8"]}, {"allowOut": ["169.254.169.254"]}, {"denyOut": ["not an address!"]}):
        assert client.put(f"/sandboxes/{sandbox}/network", json=wrong).status_code == 400
        assert client.post("/sandboxes", json={"templateID": "base", "network": wrong}).status_code == 400
    assert policy() == EgressPolicy.of(False)


@needs_root
def test_a_sandbox_made_without_a_network_is_given_one_and_loses_what_it_reached(start_server: StartServer) -> None:
    server = start_server({"sandboxes": {"internet": False, "isolation": "namespace"}})
    with server.client() as client:
        sandbox = create(client)
        path = f"/sandboxes/{sandbox}/network"

        def network() -> NetworkRequest:
            machine = server.fleet.machine(sandbox)
            assert machine is not None
            return machine.request.network

        assert client.put(path, json={}).status_code == 204
        assert not network().enabled
        handle = Sandbox.connect(sandbox, server=server.url, api_key=server.key)
        handle.set_network({"allow_internet_access": False, "allow": ["192.0.2.0/24"]})
        assert "eth0" in handle.commands.run("cat /proc/net/dev").stdout
        assert network() == NetworkRequest(True, policy=EgressPolicy.of(False, ["192.0.2.0/24"]))
        assert client.put(path, json={}).status_code == 204
        assert network() == NetworkRequest(True, policy=EgressPolicy.of(False))
        assert client.delete(f"/sandboxes/{sandbox}").status_code == 204


@pytest.mark.soak
@needs_gvisor
def test_memory_outlasts_the_server_where_the_backend_writes_it_down(start_server: StartServer) -> None:
    settings = {"sandboxes.isolation": "gvisor", "sandboxes.internet": False}
    first = start_server(settings)
    with first.client() as client:
        sandbox = create(client)
        pid = run(first, sandbox, "sleep 100000 >/dev/null 2>&1 & echo $!").strip()
        assert client.post(f"/sandboxes/{sandbox}/pause").status_code == 204
        assert first.fleet.record(sandbox).machine is None
    first.stop("persist")
    second = start_server(settings)
    with second.client() as client:
        assert client.get(f"/sandboxes/{sandbox}").json()["pauseMode"] == "full"
        assert client.post(f"/v2/sandboxes/{sandbox}/connect", json={}).status_code == 201
        assert run(second, sandbox, f"kill -0 {pid} && echo alive") == "alive\n"
        assert client.delete(f"/sandboxes/{sandbox}").status_code == 204


def test_the_page_for_people_needs_no_way_to_the_internet(server: RunningServer) -> None:
    page = httpx.get(f"{server.url}/docs")
    assert page.status_code == 200
    assert "https://" not in page.text
    document = httpx.get(f"{server.url}/openapi.json", timeout=60).json()
    repeatable = [path for path, item in document["paths"].items() for operation in item.values() if "422" in operation["responses"]]
    assert repeatable == ["/node/v1/sandboxes", "/sandboxes", "/v2/sandboxes"], "a body that makes no sense is answered 400"
