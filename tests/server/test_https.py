"""`agentenv serve --tls-certificate … --tls-key …`: everything that reaches the server, over HTTPS with a certificate that is checked."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.conditions import needs_namespaces
from tests.server.conftest import KEY
from tests.server.proxy import inside
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from agentenv.errors import InfrastructureError
from agentenv.sandbox import Sandbox

# A process that starts beside the tests, on a machine that has much else to do.
pytestmark = [needs_namespaces, pytest.mark.timeout(300)]

PORT, WEBSOCKET_PORT = 8000, 8001


@dataclass(frozen=True)
class Secure:
    """A server at `url`, and whom its clients trust."""

    url: str
    certificate: Path
    trusted: ssl.SSLContext

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"X-API-Key": KEY}, verify=self.trusted, timeout=60)


@pytest.fixture(scope="module")
def secure(server_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    place = tmp_path_factory.mktemp("tls")
    certificate, key = place / "cert.pem", place / "key.pem"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request.split(), *names], check=True, capture_output=True, timeout=60)
    options = ["--tls-certificate", str(certificate), "--tls-key", str(key), "--port", "0", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "agentenv.cli.main", "serve", *options],
        # In a process of its own, since a process has one dashboard; in the home of the others, whose image is made.
        env={**os.environ, "AGENTENV_HOME": str(server_home), "AGENTENV_API_KEY": KEY, "AGENTENV_SHUTDOWN_POLICY": "kill"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        yield Secure(told["url"], certificate, ssl.create_default_context(cafile=str(certificate)))
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@pytest.fixture(scope="module")
def sandbox(secure: Secure) -> Iterator[Sandbox]:
    """Of our own handle: its requests and its tunnel trust what OpenSSL's own variable names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(secure.certificate))
        with Sandbox.create(server=secure.url, api_key=KEY) as made:
            yield made


def test_who_does_not_trust_the_certificate_is_told_nothing(secure: Secure) -> None:
    assert secure.url.startswith("https://")
    with secure.client() as client:
        assert client.get("/whoami").json()["tenant"] == "default"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{secure.url}/health")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http{secure.url.removeprefix('https')}/health")
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        # Of another key, since a process keeps the client that it has for a server and a key.
        Sandbox.create(server=secure.url, api_key="e2b_another")


def test_the_tunnel_carries_commands_and_files(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("echo $((6 * 7))").stdout == "42\n"
    content = bytes(range(256)) * 20_000
    sandbox.files.write("/root/data", content)
    assert sandbox.commands.run("sha256sum /root/data").stdout.split()[0] == hashlib.sha256(content).hexdigest()
    assert sandbox.files.read("/root/data", format="bytes") == content


def test_the_proxy_carries_http_and_websockets(secure: Secure, sandbox: Sandbox) -> None:
    sandbox.files.write("/srv/inside.py", Path(inside.__file__).read_bytes())
    server = sandbox.commands.run(["python3", "/srv/inside.py", str(PORT), str(WEBSOCKET_PORT)], background=True)
    assert next(iter(server)).stdout == "ready\n"
    with secure.client() as client:
        told = client.get(f"/proxy/{sandbox.id}/{PORT}/anything").json()
        assert dict(told["headers"])["x-forwarded-proto"] == "https"
        assert len(client.get(f"/proxy/{sandbox.id}/{PORT}/bytes/3000000").content) == 3_000_000
    address = f"wss{secure.url.removeprefix('https')}/proxy/{sandbox.id}/{WEBSOCKET_PORT}/path"
    with connect(address, ssl=secure.trusted, subprotocols=[Subprotocol("chat")]) as websocket:
        assert str(websocket.recv()).startswith("/path")
        websocket.send("over TLS")
        assert websocket.recv() == "over TLS"


def test_links_and_the_dashboard_are_https(secure: Secure) -> None:
    with secure.client() as client:
        build = client.post("/v3/templates", json={"name": "over-tls"}).json()
        link = client.get(f"/templates/{build['templateID']}/files/{'0a' * 32}").json()["url"]
        assert link.startswith(f"{secure.url}/templates/")
        assert client.put(link, content=b"x").status_code == 200
        assert client.delete(f"/templates/{build['templateID']}").status_code == 204
        signed_in = client.post("/dashboard/login", data={"key": KEY, "next": "/"}, headers={"Origin": secure.url})
        assert "Secure" in signed_in.headers["set-cookie"]
        page = client.get("/dashboard/", headers={"Accept": "text/html"})
        assert page.status_code == 200
        assert "AgentENV" in page.text
