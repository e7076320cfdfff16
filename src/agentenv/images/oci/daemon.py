"""Images of a Docker or Podman daemon on this machine: `docker-daemon:NAME`, `podman:NAME`.

Podman answers Docker's API as well (https://docs.docker.com/reference/api/engine/, `GET /images/{name}/get`).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from urllib.parse import quote

import httpx

from agentenv.errors import CapabilityError, InfrastructureError, NotFound
from agentenv.images.kept import Progress
from agentenv.images.oci.layout import Layout

SCHEMES = {"docker-daemon": "Docker", "podman": "Podman"}
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)


def daemon_address(scheme: str) -> str | None:
    """Where the daemon is spoken to (`unix://PATH` or another URL): DOCKER_HOST or CONTAINER_HOST, else the usual socket; None without."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if scheme == "podman":
        named, places = os.environ.get("CONTAINER_HOST"), [*([Path(runtime, "podman/podman.sock")] if runtime else [])]
        places.append(Path("/run/podman/podman.sock"))
    else:
        named, places = os.environ.get("DOCKER_HOST"), [Path("/var/run/docker.sock")]
        places += [Path(runtime, "docker.sock")] if runtime else []
    return named or next((f"unix://{path}" for path in places if path.exists()), None)


def export(scheme: str, name: str, scratch: Path, progress: Progress | None) -> Layout:
    """The image `name` of the daemon, as a layout in `scratch`, which is gone when it is closed.

    Raises `CapabilityError` where there is no daemon, `NotFound`, `InfrastructureError` when it breaks off.
    """
    address = daemon_address(scheme)
    if address is None:
        raise CapabilityError(
            f"{scheme}:{name} cannot be used: there is no {SCHEMES[scheme]} on this machine (no socket of its daemon).",
            remedy="Pull from a registry instead (`docker.io/library/NAME`), or use `oci:PATH` with what `docker save` wrote.",
        )
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".daemon-", dir=scratch) as directory:
        path = Path(directory) / "saved.tar"
        try:
            with _client(address) as client, client.stream("GET", f"/images/{quote(name, safe='')}/get") as answer:
                if answer.status_code == httpx.codes.NOT_FOUND:
                    raise NotFound(f"{SCHEMES[scheme]} has no image {name!r}.", remedy=f"`{scheme.partition('-')[0]} images` lists them.")
                answer.raise_for_status()
                with path.open("wb") as file:
                    for block in answer.iter_raw():
                        file.write(block)
                        if progress is not None:
                            progress(f"{scheme}:{name}", file.tell(), 0)
        except httpx.HTTPError as error:
            raise InfrastructureError(
                f"{SCHEMES[scheme]} at {address} did not hand out {name!r}: {error or type(error).__name__}.",
                remedy="Is the daemon running, and may you use its socket?",
            ) from error
        # The open file outlives its name.
        return Layout(path, None, scratch)


def _client(address: str) -> httpx.Client:
    if address.startswith("unix://"):
        return httpx.Client(
            transport=httpx.HTTPTransport(uds=address.removeprefix("unix://")), base_url="http://localhost", timeout=_TIMEOUT
        )
    return httpx.Client(base_url=address.replace("tcp://", "http://", 1), timeout=_TIMEOUT)
