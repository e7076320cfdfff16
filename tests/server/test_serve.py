"""The server as a process of its own: what it announces, how it ends, what the next one finds."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conditions import needs_namespaces
from tests.server.postgres import needs_postgres

pytestmark = needs_namespaces


@dataclass(frozen=True)
class Process:
    """`agentenv serve` as it runs, with what it announced."""

    process: subprocess.Popen[str]
    told: dict[str, Any]
    key: str

    @property
    def url(self) -> str:
        return str(self.told["url"])

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"X-API-Key": self.key}, timeout=60, **more)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


def start(home: Path, *arguments: str, key: str | None = None, environment: Mapping[str, str] | None = None) -> Process:
    """Starts it and returns when it takes requests."""
    own = {"AGENTENV_HOME": str(home), **({"AGENTENV_API_KEY": key} if key else {}), **(environment or {})}
    process = subprocess.Popen(
        [sys.executable, "-m", "agentenv.cli.main", "serve", "--port", "0", "--json", *arguments],
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(f"it ended with status {process.wait(60)} and announced nothing")
    told = json.loads(line)
    if "error" in told:
        process.wait(60)
        return Process(process, told, "")
    return Process(process, told, told.get("api_key") or key or "")


@contextmanager
def served(home: Path, *arguments: str, **more: Any) -> Iterator[Process]:
    """A server that is ended at the end of the block, however it comes."""
    running = start(home, *arguments, **more)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait(60)
        assert running.process.stdout is not None
        running.process.stdout.close()


def create(client: httpx.Client, **fields: object) -> str:
    answer = client.post("/v2/sandboxes", json={"templateID": "base", **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["sandboxID"])


def test_the_key_is_told_once_and_what_ran_is_paused_for_the_next(server_home: Path) -> None:
    home = server_home.parent / "serve"
    with served(home) as first:
        assert Path(first.told["api_key_file"]).read_text().strip() == first.key
        with first.client() as client:
            running, paused = create(client, timeout=1000), create(client)
            client.post(f"/sandboxes/{paused}/pause")
        assert first.end() == 0
    with served(home, key="ignored-since-there-is-one") as second:
        assert "api_key" not in second.told
        with Process(second.process, second.told, first.key).client() as client:
            found = {one["sandboxID"]: one["state"] for one in client.get("/v2/sandboxes").json()}
            assert found == {running: "paused", paused: "paused"}
            assert client.post(f"/sandboxes/{running}/connect", json={"timeout": 60}).status_code == 201
            lines = client.get(f"/v2/sandboxes/{running}/logs").json()["logs"]
            assert [line["fields"].get("reason") for line in lines if line["message"] == "paused"] == ["the server ends"]
            assert [line["fields"].get("lost") for line in lines if "taken over" in line["message"]] == ["memory and processes"]
        assert second.end(signal.SIGINT) == 0


def test_kill_ends_what_runs_and_keeps_what_is_paused(server_home: Path) -> None:
    home = server_home.parent / "serve"
    with served(home, key="a-key-for-this-test-only", environment={"AGENTENV_SHUTDOWN_POLICY": "kill"}) as first:
        with httpx.Client(base_url=first.url, headers={"X-API-Key": first_key(home, first)}, timeout=60) as client:
            gone, kept = create(client), create(client)
            client.post(f"/sandboxes/{kept}/pause")
        assert first.end() == 0
    with served(home) as second, httpx.Client(base_url=second.url, headers={"X-API-Key": first_key(home, second)}, timeout=60) as client:
        assert client.get(f"/sandboxes/{gone}").status_code == 404
        assert client.get(f"/sandboxes/{kept}").json()["state"] == "paused"
        assert client.delete(f"/sandboxes/{kept}").status_code == 204


def first_key(home: Path, running: Process) -> str:
    """The key of the home's first start."""
    file = home / "server" / "api-key"
    return file.read_text().strip() if file.exists() else running.key


def test_it_waits_for_sandboxes_to_end_where_it_is_to_drain(server_home: Path) -> None:
    home = server_home.parent / "serve"
    with served(home, key="a-key-for-this-test-only", environment={"AGENTENV_SHUTDOWN_POLICY": "drain"}) as running:
        key = first_key(home, running)
        with httpx.Client(base_url=running.url, headers={"X-API-Key": key}, timeout=60) as client:
            sandbox = create(client)
            running.process.send_signal(signal.SIGTERM)
            while client.get("/health/ready").status_code != 503:
                pass
            assert client.post("/sandboxes", json={"templateID": "base"}).status_code == 503
            assert client.get(f"/sandboxes/{sandbox}").json()["state"] == "running"
            assert client.delete(f"/sandboxes/{sandbox}").status_code == 204
        assert running.process.wait(60) == 0


def test_a_second_server_in_the_same_home_is_refused(server_home: Path) -> None:
    home = server_home.parent / "serve"
    with served(home, key="a-key-for-this-test-only"), served(home) as second:
        assert "another server uses" in second.told["error"]["message"]
        assert second.process.wait(60) == 1


def test_an_address_in_use_is_named(server_home: Path) -> None:
    with served(server_home.parent / "serve", "--host", "192.0.2.1") as running:
        assert "192.0.2.1" in running.told["error"]["message"]


def test_https(server_home: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [*request.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    arguments = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    with served(server_home.parent / "serve", *arguments) as running:
        assert running.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(certificate))
        assert httpx.get(f"{running.url}/health", verify=trusted).status_code == 204
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{running.url}/health")


def test_a_certificate_that_cannot_be_used_is_named(server_home: Path, tmp_path: Path) -> None:
    (tmp_path / "not.pem").write_text("nothing")
    arguments = ("--tls-certificate", str(tmp_path / "not.pem"), "--tls-key", str(tmp_path / "not.pem"))
    with served(server_home.parent / "serve", *arguments) as running:
        assert "not.pem" in running.told["error"]["message"]
    with served(server_home.parent / "serve", "--tls-key", str(tmp_path / "not.pem")) as running:
        assert "both" in running.told["error"]["message"]


@needs_postgres
def test_with_postgresql_it_finds_again_what_it_kept(server_home: Path, postgres_url: str) -> None:
    home, key = server_home.parent / "serve-postgresql", "a-key-for-this-test-only"
    arguments = ("--database", postgres_url)
    with served(home, *arguments, key=key) as first:
        with first.client() as client:
            sandbox = create(client, metadata={"a": "ü"})
            client.post(f"/sandboxes/{sandbox}/snapshots", json={"name": "kept"})
        with served(server_home.parent / "serve-other", *arguments) as other:
            assert "another server uses this database" in other.told["error"]["message"]
        assert first.end() == 0
    with served(home, *arguments, key=key) as second, second.client() as client:
        assert client.post(f"/v2/sandboxes/{sandbox}/connect", json={}).status_code == 201
        assert client.get(f"/sandboxes/{sandbox}").json()["metadata"] == {"a": "ü"}
        assert create(client, templateID="kept")
        lines = client.get(f"/v2/sandboxes/{sandbox}/logs", params={"search": "paused"}).json()["logs"]
        assert [line["message"] for line in lines] == ["paused"]
        assert second.end() == 0
