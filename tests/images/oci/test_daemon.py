"""Images of a Docker or Podman daemon; a small server on a unix socket plays the daemon where there is none."""

from __future__ import annotations

import shutil
import socketserver
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from pathlib import Path

import pytest
from tests.images.oci.conftest import small_image
from tests.oci import write_layout

from agentenv.errors import CapabilityError, InfrastructureError, NotFound
from agentenv.images import ImageStore
from agentenv.images.oci.daemon import daemon_address


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("CONTAINER_HOST", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[str]:
    """Answers Docker's API for one image, `app:1`; gives its address."""
    layout = write_layout(tmp_path / "layout", {"app:1": small_image()})
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in layout.iterdir():
            archive.add(path, arcname=path.name)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            there = self.path == "/images/app%3A1/get"
            self.send_response(200 if there else 404)
            self.end_headers()
            self.wfile.write(buffer.getvalue() if there else b"{}")

        def address_string(self) -> str:
            return "test"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    path = tmp_path / "daemon.sock"
    server = socketserver.UnixStreamServer(str(path), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"unix://{path}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("scheme", "variable"), [("docker-daemon", "DOCKER_HOST"), ("podman", "CONTAINER_HOST")])
def test_an_image_of_a_daemon(store: ImageStore, daemon: str, monkeypatch: pytest.MonkeyPatch, scheme: str, variable: str) -> None:
    monkeypatch.setenv(variable, daemon)
    assert store.resolve(f"{scheme}:app:1").image == small_image().image_id
    monkeypatch.delenv(variable)
    assert store.resolve(f"{scheme}:app:1").image == small_image().image_id, "it is here already"
    assert list((store.directory / "downloads").iterdir()) == []


def test_what_the_daemon_lacks_is_not_found(store: ImageStore, daemon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", daemon)
    with pytest.raises(NotFound, match="Docker has no image 'other'"):
        store.resolve("docker-daemon:other")


def test_without_a_daemon_one_clear_error(store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if daemon_address("podman") is None:
        with pytest.raises(CapabilityError, match=r"no Podman on this machine.*registry"):
            store.resolve("podman:app")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(InfrastructureError, match=r"did not hand out 'app'.*Is the daemon running"):
        store.resolve("docker-daemon:app")


def test_an_image_of_the_real_docker(store: ImageStore, tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no Docker daemon runs here")
    name = "agentenv-test-image:1"
    (tmp_path / "root/bin").mkdir(parents=True)
    (tmp_path / "root/bin/sh").write_text("shell")
    archive = tmp_path / "root.tar"
    with tarfile.open(archive, "w") as packed:
        packed.add(tmp_path / "root", arcname=".")
    subprocess.run([docker, "import", str(archive), name], check=True, capture_output=True)
    try:
        root = store.resolve(f"docker-daemon:{name}")
        assert any((layer / "bin/sh").exists() for layer in root.trees[0].lowers)
    finally:
        subprocess.run([docker, "rmi", name], check=False, capture_output=True)
