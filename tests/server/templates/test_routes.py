"""The routes about templates: who may use them, what they answer to nonsense, and that nothing of another tenant is seen."""

from __future__ import annotations

import io
import tarfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.conftest import RunningServer, StartServer

from agentenv.server.access import Quotas, Role

HASH = "0a" * 32


@pytest.fixture(scope="module")
def others(server: RunningServer) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of another tenant: a user and one who may only read."""
    _, keys = server.new_tenant(f"others-{uuid.uuid4().hex[:8]}", Role.USER, Role.READ_ONLY, quotas=Quotas(templates=2))
    with server.client(keys[0]) as user, server.client(keys[1]) as reader:
        yield user, reader


def requested(client: httpx.Client, name: str) -> dict[str, Any]:
    answer = client.post("/v3/templates", json={"name": name})
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def started(client: httpx.Client, build: dict[str, Any], **body: Any) -> httpx.Response:
    return client.post(f"/v2/templates/{build['templateID']}/builds/{build['buildID']}", json={"fromImage": "host", **body})


def finished(client: httpx.Client, build: dict[str, Any]) -> dict[str, Any]:
    while True:
        state = client.get(f"/templates/{build['templateID']}/builds/{build['buildID']}/status").json()
        if state["status"] in ("ready", "error"):
            return dict(state)
        time.sleep(0.02)


def archive(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_a_build_from_request_to_ready(client: httpx.Client) -> None:
    build = requested(client, "routes-plain:v1")
    assert (build["names"], build["tags"], build["public"]) == (["routes-plain"], ["v1"], False)
    assert client.get(f"/templates/{build['templateID']}").json()["buildStatus"] == "waiting"
    assert started(client, build, steps=[{"type": "RUN", "args": ["echo out; echo err >&2"]}]).status_code == 202
    assert started(client, build).status_code == 409
    assert finished(client, build)["status"] == "ready"
    logs = client.get(f"/templates/{build['templateID']}/builds/{build['buildID']}/logs").json()["logs"]
    assert {"out", "err", "Finished"} <= {line["message"] for line in logs}
    assert {line["step"] for line in logs if line["message"] == "out"} == {"RUN echo out; echo err >&2"}
    backward = client.get(f"/templates/{build['templateID']}/builds/{build['buildID']}/logs?direction=backward&limit=1").json()["logs"]
    assert backward == logs[-1:]
    shown = client.get(f"/templates/{build['templateID']}").json()
    assert [one["status"] for one in shown["builds"]] == ["ready"]
    assert (shown["buildStatus"], shown["buildCount"], shown["names"]) == ("ready", 1, ["routes-plain"])
    assert build["templateID"] in [one["templateID"] for one in client.get("/templates").json()]
    assert build["templateID"] in [one["templateID"] for one in client.get("/v2/templates?limit=100").json()]
    assert client.delete(f"/templates/{build['templateID']}").status_code == 204
    assert client.get(f"/templates/{build['templateID']}").status_code == 404


def test_files_are_uploaded_by_a_signed_link(client: httpx.Client, server: RunningServer) -> None:
    build = requested(client, "routes-files")
    link = client.get(f"/templates/{build['templateID']}/files/{HASH}")
    assert (link.status_code, link.json()["present"]) == (201, False)
    url = link.json()["url"]
    missing = started(client, build, steps=[{"type": "COPY", "args": ["f", "/f"], "filesHash": HASH}])
    assert (missing.status_code, "were not uploaded" in missing.text) == (400, True)
    assert httpx.put(url.replace("signature=", "signature=0"), content=b"x").status_code == 401
    assert httpx.put(url.replace(HASH, "0b" * 32), content=b"x").status_code == 401
    assert httpx.put(url, content=archive(f=b"content")).status_code == 200
    assert client.get(f"/templates/{build['templateID']}/files/{HASH}").json()["present"] is True
    assert started(client, build, steps=[{"type": "COPY", "args": ["f", "/f"], "filesHash": HASH}]).status_code == 202
    assert finished(client, build)["status"] == "ready"
    for wrong in ("x", "..%2f..%2fetc", "0A" * 32):
        assert client.get(f"/templates/{build['templateID']}/files/{wrong}").status_code in (400, 404)


def test_what_was_uploaded_as_no_archive_fails_the_build(client: httpx.Client) -> None:
    name = "0c" * 32
    build = requested(client, "routes-broken")
    url = client.get(f"/templates/{build['templateID']}/files/{name}").json()["url"]
    httpx.put(url, content=b"this is no archive" * 100).raise_for_status()
    assert started(client, build, steps=[{"type": "COPY", "args": ["f", "/f"], "filesHash": name}]).status_code == 202
    state = finished(client, build)
    assert state["status"] == "error"
    assert "no complete tar archive" in state["reason"]["message"]
    assert state["reason"]["step"] == "COPY f /f"


def test_another_tenant_sees_and_touches_nothing(client: httpx.Client, others: tuple[httpx.Client, httpx.Client]) -> None:
    other, _ = others
    build = requested(client, "routes-mine")
    started(client, build, steps=[{"type": "RUN", "args": ["echo secret"]}])
    finished(client, build)
    template, path = build["templateID"], f"/templates/{build['templateID']}"
    for method, place, body in [
        ("GET", path, None),
        ("GET", f"{path}/builds/{build['buildID']}/status", None),
        ("GET", f"{path}/builds/{build['buildID']}/logs", None),
        ("GET", f"{path}/files/{HASH}", None),
        ("GET", f"{path}/tags", None),
        ("GET", "/templates/aliases/routes-mine", None),
        ("DELETE", path, None),
        ("PATCH", f"/v2{path}", {"public": True}),
        ("POST", f"/v2{path}/builds/{build['buildID']}", {"fromImage": "host"}),
        ("POST", "/templates/tags", {"target": "routes-mine", "tags": ["x"]}),
    ]:
        assert other.request(method, place, json=body).status_code == 404, place
    removed = other.request("DELETE", "/templates/tags", json={"name": "routes-mine", "tags": ["default"]})
    assert removed.status_code == 404
    assert template not in other.get("/templates").text
    assert requested(other, "routes-mine")["templateID"] != template
    theirs = requested(other, "routes-theirs")
    answer = started(other, theirs, fromImage=None, fromTemplate="routes-mine")
    assert answer.status_code in (404, 409), "their own of that name has no build yet"
    assert other.post("/v3/templates", json={"name": "routes-too-many"}).status_code == 429


def test_what_is_public_can_be_used_and_not_changed(client: httpx.Client, others: tuple[httpx.Client, httpx.Client]) -> None:
    other, _ = others
    build = requested(client, "routes-public")
    started(client, build, steps=[{"type": "RUN", "args": ["echo secret"]}])
    finished(client, build)
    path = f"/templates/{build['templateID']}"
    assert client.patch(f"/v2{path}", json={"public": True}).json() == {"names": ["routes-public"]}
    assert other.get(path).json()["public"] is True
    assert other.get(f"{path}/builds/{build['buildID']}/logs").status_code == 404, "what a build said is its owner's"
    assert other.delete(path).status_code == 404
    assert client.patch(path, json={"public": False}).json() == {}
    assert other.get(path).status_code == 404


def test_who_may_only_read_changes_nothing(server: RunningServer, others: tuple[httpx.Client, httpx.Client]) -> None:
    _, reader = others
    assert reader.get("/templates").status_code == 200
    assert reader.post("/v3/templates", json={"name": "x"}).status_code == 403
    assert reader.delete("/templates/x").status_code == 403
    assert httpx.get(f"{server.url}/templates").status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v3/templates", {}, 400, "needs a name"),
        ("/v3/templates", {"name": "UPPER"}, 400, "no name for a template"),
        ("/v3/templates", {"name": "x:-"}, 400, "is no tag"),
        ("/v3/templates", {"name": "x", "cpuCount": 0}, 400, "cpuCount"),
        ("/v3/templates", {"name": "x", "memoryMB": 1}, 400, "memoryMB"),
        ("/templates", {}, 400, "dockerfile"),
        ("/templates", {"dockerfile": "FLY x"}, 400, "Dockerfile:1"),
        ("/templates", {"dockerfile": "FROM host\nCOPY a /b"}, 501, "Dockerfile:2: `COPY a /b` copies files"),
        ("/templates/never", {"dockerfile": "FROM host"}, 404, "there is no template"),
        ("/templates/x/builds/y", {}, 404, "there is no template"),
        ("/templates/tags", {"target": "never", "tags": ["a"]}, 404, "there is no template"),
    ],
)
def test_nonsense_is_refused(client: httpx.Client, path: str, body: dict[str, Any], status: int, message: str) -> None:
    answer = client.post(path, json=body)
    assert (answer.status_code, message in answer.text) == (status, True), answer.text


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"fromImage": None}, 400, "starts from an image or from a template"),
        ({"fromImage": "dir:/"}, 400, "no name of an image"),
        ({"fromImage": None, "fromTemplate": "never-was"}, 404, "there is no template"),
        ({"fromImageRegistry": {"type": "aws"}}, 501, "does not ask AWS"),
        ({"steps": [{"type": "FLY"}]}, 400, "there is no step"),
        ({"steps": [{"type": "COPY", "args": ["a", "b"], "filesHash": "../x"}]}, 400, "no hash of files"),
        ({"dockerfile": "RUNN x"}, 400, "Dockerfile:1"),
        ({"dockerfile": "FROM host", "target": "none"}, 400, "there is no stage"),
        ({"dockerfile": "FROM host", "context": "../../etc"}, 400, "no hash of files"),
    ],
)
def test_a_build_of_nonsense_does_not_begin(client: httpx.Client, body: dict[str, Any], status: int, message: str) -> None:
    build = requested(client, "routes-nonsense")
    answer = started(client, build, **body)
    assert (answer.status_code, message in answer.text) == (status, True), answer.text
    assert started(client, build).status_code == 202, "the build can still be started rightly"
    assert finished(client, build)["status"] == "ready"


def test_a_build_of_the_first_generation_is_of_the_dockerfile_that_it_sends(client: httpx.Client) -> None:
    dockerfile = "FROM host AS first\nRUN echo old > /made\nFROM host\nCOPY --from=first /made /opt/made\nCOPY <<END /opt/said\nsaid\nEND"
    asked = client.post("/templates", json={"dockerfile": dockerfile, "alias": "routes-first", "cpuCount": 1, "memoryMB": 256})
    build = asked.json()
    assert (asked.status_code, build["aliases"], build["memoryMB"], build["buildStatus"]) == (202, ["routes-first"], 256, "waiting")
    path = f"/templates/{build['templateID']}/builds/{build['buildID']}"
    assert client.post(path).status_code == 202
    assert client.post(path).status_code == 409
    assert finished(client, build)["status"] == "ready"
    sandbox = client.post("/sandboxes", json={"templateID": "routes-first"}).json()
    headers = {"e2b-sandbox-id": sandbox["sandboxID"], "e2b-sandbox-port": "49983", "X-Access-Token": sandbox["envdAccessToken"]}
    made = [client.get("/files", params={"path": f"/opt/{name}"}, headers=headers).text for name in ("made", "said")]
    assert made == ["old\n", "said\n"]
    client.delete(f"/sandboxes/{sandbox['sandboxID']}")
    again = client.post(f"/templates/{build['templateID']}", json={"dockerfile": "FROM host"})
    assert (again.status_code, again.json()["templateID"]) == (202, build["templateID"])
    assert again.json()["buildID"] != build["buildID"]
    unnamed = client.post("/templates", json={"dockerfile": "FROM host"}).json()
    assert unnamed["aliases"] == []
    for template in (build, unnamed):
        assert client.delete(f"/templates/{template['templateID']}").status_code == 204


def test_a_build_fetches_nothing_from_the_servers_own_network(client: httpx.Client, server: RunningServer) -> None:
    build = requested(client, "routes-inward")
    assert started(client, build, fromImage=None, dockerfile=f"FROM host\nADD {server.url}/openapi.json /stolen").status_code == 202
    state = finished(client, build)
    assert state["status"] == "error"
    assert "127.0.0.1, which is not on the public internet" in state["reason"]["message"]
    assert list(server.fleet.node.scratch.iterdir()) == []


def test_a_template_that_is_deleted_ends_its_build(client: httpx.Client, server: RunningServer) -> None:
    build = requested(client, "routes-ended")
    started(client, build, steps=[{"type": "RUN", "args": ["echo runs; sleep 100"]}])
    path = f"/templates/{build['templateID']}/builds/{build['buildID']}/status"
    while "runs" not in client.get(path).text:
        time.sleep(0.02)
    assert client.delete(f"/templates/{build['templateID']}").status_code == 204
    assert client.get(path).status_code == 404
    assert all("sleep 100" not in str(record) for record in server.fleet.node.list())


def test_builds_that_a_server_did_not_finish_have_failed(start_server: StartServer, tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = start_server(home=home)
    with first.client() as client:
        waiting, running = requested(client, "left-waiting"), requested(client, "left-running")
        started(client, running, steps=[{"type": "RUN", "args": ["echo runs; sleep 100"]}])
        path = f"/templates/{running['templateID']}/builds/{running['buildID']}/status"
        while "runs" not in client.get(path).text:
            time.sleep(0.02)
    first.stop()
    second = start_server(home=home)
    with second.client() as client:
        for build, reason in ((waiting, "ended before"), (running, "cancelled")):
            state = finished(client, build)
            assert (state["status"], reason in state["reason"]["message"]) == ("error", True)
