"""How a server starts and ends, and what the next one finds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from tests.conditions import needs_namespaces
from tests.server.conftest import KEY, RunningServer, StartServer
from tests.server.postgres import needs_postgres

from agentenv.errors import AgentEnvError, ConfigError, InfrastructureError
from agentenv.server.serve import listening
from agentenv.server.settings import load_settings

pytestmark = needs_namespaces


def create(client: httpx.Client, **fields: object) -> str:
    answer = client.post("/v2/sandboxes", json={"templateID": "base", **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["sandboxID"])


def refusal(home: Path, **flags: object) -> AgentEnvError:
    """The error with which a server does not start."""

    async def start() -> None:
        async with listening(load_settings(environment={}, flags={"port": 0, **flags}), home, given_key=KEY):
            raise AssertionError("it started")

    with pytest.raises(AgentEnvError) as caught:
        asyncio.run(start())
    return caught.value


def test_the_program_tells_its_key_once_and_ends_in_order_at_a_signal(server_home: Path) -> None:
    home = server_home.parent / "program"
    process = subprocess.Popen(
        [sys.executable, "-m", "agentenv.cli.main", "serve", "--port", "0", "--json"],
        env={**os.environ, "AGENTENV_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert Path(told["api_key_file"]).read_text().strip() == told["api_key"]
        with httpx.Client(base_url=told["url"], headers={"X-API-Key": told["api_key"]}, timeout=60) as client:
            create(client)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert process.stdout.read() == ""
        assert list((home / "owners").iterdir()) == []
        assert len(list((home / "snapshots" / "tree").glob("*.json"))) == 1
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_what_ran_is_paused_for_the_next_server(start_server: StartServer) -> None:
    first = start_server({"sandboxes.isolation": "namespace"})  # which cannot write memory down
    with first.client() as client:
        running, paused, on_disk = create(client, timeout=1000), create(client), create(client)
        client.post(f"/sandboxes/{paused}/pause")
        measured = client.get(f"/sandboxes/{on_disk}/metrics").json()
        client.post(f"/sandboxes/{on_disk}/pause", json={"memory": False})
    first.stop("persist")
    with start_server().client() as client:
        found = {sandbox: client.get(f"/sandboxes/{sandbox}").json()["state"] for sandbox in (running, paused, on_disk)}
        assert set(found.values()) == {"paused"}
        assert client.post(f"/sandboxes/{running}/connect", json={"timeout": 60}).status_code == 201
        lines = client.get(f"/v2/sandboxes/{running}/logs").json()["logs"]
        assert [line["fields"].get("reason") for line in lines if line["message"] == "paused"] == ["the server ends"]
        taken_over = {sandbox: client.get(f"/v2/sandboxes/{sandbox}/logs?search=taken").json()["logs"][0] for sandbox in found}
        assert taken_over[running]["fields"]["lost"] == "memory and processes"
        assert "lost" not in taken_over[on_disk]["fields"]
        assert client.get(f"/sandboxes/{on_disk}/metrics").json() == measured != []
        for sandbox in found:
            assert client.delete(f"/sandboxes/{sandbox}").status_code == 204


def test_kill_ends_what_runs_and_keeps_what_is_paused(start_server: StartServer) -> None:
    first = start_server()
    with first.client() as client:
        gone, kept = create(client), create(client)
        client.post(f"/sandboxes/{kept}/pause")
    first.stop("kill")
    with start_server().client() as client:
        assert client.get(f"/sandboxes/{gone}").status_code == 404
        assert client.get(f"/sandboxes/{kept}").json()["state"] == "paused"
        assert client.delete(f"/sandboxes/{kept}").status_code == 204


def test_drain_waits_for_sandboxes_to_end_and_takes_no_new_ones(start_server: StartServer) -> None:
    server = start_server()
    with server.client() as client:
        sandbox = create(client)
        ending = threading.Thread(target=server.stop, args=("drain",))
        ending.start()
        while client.get("/health/ready").status_code != 503:
            pass
        assert client.post("/sandboxes", json={"templateID": "base"}).status_code == 503
        assert client.get(f"/sandboxes/{sandbox}").json()["state"] == "running"
        assert client.delete(f"/sandboxes/{sandbox}").status_code == 204
    ending.join(60)
    assert not ending.is_alive()


def test_a_second_server_in_the_same_home_is_refused(server: RunningServer) -> None:
    assert isinstance(refusal(server.services.home), InfrastructureError)
    assert "another server uses" in str(refusal(server.services.home))


def test_an_address_that_is_not_ours_is_named(server_home: Path) -> None:
    assert "192.0.2.1" in str(refusal(server_home, host="192.0.2.1"))


def test_a_certificate_that_cannot_be_used_is_named(server_home: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "not.pem"
    wrong.write_text("nothing")
    assert "not.pem" in str(refusal(server_home, **{"tls.certificate": wrong, "tls.key": wrong}))
    half = refusal(server_home, **{"tls.key": wrong})
    assert isinstance(half, ConfigError)
    assert "both" in str(half)


def test_an_unknown_backend_is_named(server_home: Path) -> None:
    assert "'nothing'" in str(refusal(server_home, **{"sandboxes.isolation": "nothing"}))


@needs_postgres
def test_with_postgresql_the_next_server_finds_what_was_kept(
    start_server: StartServer, server_home: Path, tmp_path: Path, postgres_url: str
) -> None:
    settings = {"database": postgres_url}
    first = start_server(settings)
    with first.client() as client:
        sandbox = create(client, metadata={"a": "ü"})
        client.post(f"/sandboxes/{sandbox}/snapshots", json={"name": "kept"})
        assert "another server uses this database" in str(refusal(tmp_path / "other", database=postgres_url))
    first.stop("persist")
    with start_server(settings).client() as client:
        assert client.post(f"/v2/sandboxes/{sandbox}/connect", json={}).status_code == 201
        assert client.get(f"/sandboxes/{sandbox}").json()["metadata"] == {"a": "ü"}
        fresh = create(client, templateID="kept")
        lines = client.get(f"/v2/sandboxes/{sandbox}/logs", params={"search": "paused"}).json()["logs"]
        assert [line["message"] for line in lines] == ["paused"]
        for one in (sandbox, fresh):
            assert client.delete(f"/sandboxes/{one}").status_code == 204
        assert client.delete("/snapshots/kept").status_code == 204
