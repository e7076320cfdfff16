"""Images for the tests: layers, layouts and a registry of their own on loopback; no tool for images is needed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import signal
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentenv.images.oci.documents import CONFIG, INDEX, LAYER_GZIP, MANIFEST, Platform


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def layer_of_tree(tree: Path) -> bytes:
    """A directory as the archive of a layer."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree.iterdir()):
            archive.add(path, arcname=path.name)
    return buffer.getvalue()


@dataclass
class MadeImage:
    """An image: its blobs by digest, and the digest of its manifest."""

    manifest: bytes
    config: bytes
    blobs: dict[str, bytes] = field(default_factory=dict)
    media_type: str = MANIFEST

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    @property
    def image_id(self) -> str:
        return digest_of(self.config)


def make_image(
    layers: Sequence[bytes], config: Mapping[str, Any] | None = None, *, compress: Any = gzip.compress, architecture: str | None = None
) -> MadeImage:
    """An image of these uncompressed archives, the lowest first."""
    here = Platform.of_this_machine()
    document = {
        "architecture": architecture or here.architecture,
        "os": "linux",
        "created": "2026-01-02T03:04:05Z",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]},
    }
    encoded = json.dumps(document).encode()
    blobs = {digest_of(encoded): encoded}
    described = []
    for layer in layers:
        blob = compress(layer)
        blobs[digest_of(blob)] = blob
        described.append({"mediaType": LAYER_GZIP, "digest": digest_of(blob), "size": len(blob)})
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest_of(encoded), "size": len(encoded)},
        "layers": described,
    }
    return MadeImage(json.dumps(manifest).encode(), encoded, blobs)


def make_index(images: Mapping[str, MadeImage]) -> bytes:
    """An index of images by `architecture` or `architecture/variant`."""
    entries = []
    for name, image in images.items():
        architecture, _, variant = name.partition("/")
        platform = {"os": "linux", "architecture": architecture, **({"variant": variant} if variant else {})}
        entries.append({"mediaType": MANIFEST, "digest": image.digest, "size": len(image.manifest), "platform": platform})
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()


def write_layout(directory: Path, images: Mapping[str, MadeImage]) -> Path:
    """An OCI layout with these images by their names."""
    blobs = directory / "blobs/sha256"
    blobs.mkdir(parents=True)
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    entries = []
    for name, image in images.items():
        for digest, blob in {**image.blobs, image.digest: image.manifest}.items():
            (blobs / digest.removeprefix("sha256:")).write_bytes(blob)
        annotations = {"org.opencontainers.image.ref.name": name}
        entries.append({"mediaType": MANIFEST, "digest": image.digest, "size": len(image.manifest), "annotations": annotations})
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    return directory


@dataclass
class RunningRegistry:
    """Debian's `docker-registry` on a port of loopback, with an account where `user` is one."""

    name: str
    user: str | None = None
    password: str = ""

    def push(self, repository: str, tag: str, image: MadeImage) -> str:
        """Puts an image there; returns its reference."""
        with self._client() as client:
            for digest, blob in image.blobs.items():
                place = httpx.URL(client.post(f"/v2/{repository}/blobs/uploads/").headers["Location"])
                client.put(place.copy_merge_params({"digest": digest}), content=blob).raise_for_status()
            self._manifest(client, repository, image.digest, image.manifest, image.media_type)
            self._manifest(client, repository, tag, image.manifest, image.media_type)
        return f"{self.name}/{repository}:{tag}"

    def push_index(self, repository: str, tag: str, images: Mapping[str, MadeImage]) -> str:
        """Puts an index and its images there; returns its reference."""
        for image in images.values():
            self.push(repository, f"part-{image.digest[-8:]}", image)
        with self._client() as client:
            self._manifest(client, repository, tag, make_index(images), INDEX)
        return f"{self.name}/{repository}:{tag}"

    def forget(self, repository: str, tag: str) -> None:
        """The tag, and the manifest that it means, are gone."""
        with self._client() as client:
            digest = client.head(f"/v2/{repository}/manifests/{tag}", headers={"Accept": MANIFEST}).headers["Docker-Content-Digest"]
            client.delete(f"/v2/{repository}/manifests/{digest}").raise_for_status()

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://{self.name}", auth=(self.user, self.password) if self.user else None)

    def _manifest(self, client: httpx.Client, repository: str, name: str, content: bytes, media_type: str) -> None:
        client.put(f"/v2/{repository}/manifests/{name}", content=content, headers={"Content-Type": media_type}).raise_for_status()


@contextmanager
def running_registry(directory: Path, accounts: str = "") -> Iterator[RunningRegistry]:
    """Starts a registry; `accounts` are lines as `htpasswd -B` writes them. Skips where there is no `docker-registry`."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("no docker-registry (apt-get install docker-registry)")
    directory.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(directory / "data")}, "delete": {"enabled": True}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "for tests"},
    }
    if accounts:
        (directory / "accounts").write_text(accounts)
        settings["auth"] = {"htpasswd": {"realm": "tests", "path": str(directory / "accounts")}}
    (directory / "config.yml").write_text(json.dumps(settings))
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(directory / "config.yml")], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < deadline, "the registry does not come up"
            time.sleep(0.02)
        yield RunningRegistry(f"127.0.0.1:{port}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
