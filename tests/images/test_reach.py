"""What is fetched for others comes from the public internet only, whatever names resolve to and wherever answers lead."""

from __future__ import annotations

import http.server
import ipaddress
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentenv.errors import CapabilityError
from agentenv.images.public_transport import is_public
from agentenv.images.reach import Reach


class Handler(http.server.BaseHTTPRequestHandler):
    """Tells by which name it was asked; /away leads to the cloud's metadata."""

    def do_GET(self) -> None:
        away = self.path == "/away"
        content = self.headers["Host"].encode()
        self.send_response(302 if away else 200)
        if away:
            self.send_header("Location", "http://169.254.169.254/latest/meta-data/")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server on this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "AGENTENV_REGISTRY_MIRRORS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AGENTENV_INSECURE_REGISTRIES", raising=False)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names resolve to, besides those that are addresses."""
    known: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def look_up(host: str, port: int, *rest: Any, **more: Any) -> Any:
        return [found for address in known.get(host, [host]) for found in real(address, port, *rest, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1", "::ffff:10.1.2.3", "0.0.0.0"])
def test_a_name_that_resolves_to_a_private_address_is_refused(names: dict[str, list[str]], address: str) -> None:
    names["rebound.example"] = ["203.0.113.1", address] if ":" not in address else [address]
    with Reach.public().client() as client, pytest.raises(CapabilityError, match="not on the public internet"):
        client.get("http://rebound.example/")
    with Reach.public().client() as client, pytest.raises(CapabilityError, match="not on the public internet"):
        client.get(f"http://[{address}]/" if ":" in address else f"http://{address}/")


def test_an_address_that_a_redirect_leads_to_is_judged_too(port: int) -> None:
    with Reach.public([f"127.0.0.1:{port}"]).client(follow_redirects=True) as client:
        assert client.get(f"http://127.0.0.1:{port}/").text == f"127.0.0.1:{port}"
        with pytest.raises(CapabilityError, match=r"169\.254\.169\.254"):
            client.get(f"http://127.0.0.1:{port}/away")


def test_the_connection_goes_to_the_address_that_was_judged_under_the_hosts_name(
    port: int, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentenv.images import public_transport

    names["service.example"] = ["127.0.0.1"]
    monkeypatch.setattr(public_transport, "is_public", lambda address: str(address) == "127.0.0.1")
    with Reach.public().client() as client:
        answer = client.get(f"http://service.example:{port}/")
    assert answer.text == f"service.example:{port}"
    assert answer.request.url.host == "service.example"


def test_what_the_operator_names_is_reached(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_INSECURE_REGISTRIES", f"other:1, 127.0.0.1:{port}")
    with Reach.public().client() as client:
        assert client.get(f"http://127.0.0.1:{port}/").status_code == 200
    monkeypatch.setenv("AGENTENV_INSECURE_REGISTRIES", "")
    monkeypatch.setenv("AGENTENV_REGISTRY_MIRRORS", f"docker.io=http://127.0.0.1:{port}/hub")
    with Reach.public().client() as client:
        assert client.get(f"http://127.0.0.1:{port}/hub").status_code == 200
    with Reach().client() as client:
        assert client.get(f"http://127.0.0.1:{port}/").status_code == 200


def test_a_name_that_there_is_not_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nothing)
    with Reach.public().client() as client, pytest.raises(httpx.ConnectError, match="cannot be looked up"):
        client.get("http://nowhere.example/")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("192.0.0.9", False),
        ("198.18.0.1", False),
        ("100.64.0.1", False),
        ("2002:0a01:0203::1", False),
        ("64:ff9b::a01:203", False),
        ("fe80::1", False),
        ("ff02::1", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public
