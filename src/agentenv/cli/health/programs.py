"""Programs beside AgentENV: its own native ones, Firecracker, Docker."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from agentenv.cli.health.check import Finding
from agentenv.errors import AgentEnvError
from agentenv.guest.native import PROGRAMS, binary
from agentenv.paths import state_home

_PATIENCE = 3.0
_WITHOUT_FIRECRACKER = "Everything else: sandboxes are isolated by Linux namespaces."
_WITHOUT_DOCKER = "Everything: sandboxes do not use Docker."


def native_programs() -> Finding:
    """The agent and the launcher that the package carries."""
    try:
        sizes = {name: binary(name).stat().st_size for name in PROGRAMS}
    except AgentEnvError as error:
        return Finding("native programs", "failed", error.message, remedy=error.remedy)
    summary = ", ".join(f"{name} {size // 1024} KiB" for name, size in sizes.items())
    return Finding("native programs", "ok", summary, data=dict(sizes))


def firecracker(home: Path | None = None) -> Finding:
    """The Firecracker binary on PATH or under AGENTENV_HOME/artefacts, asked for its version."""
    found = shutil.which("firecracker") or _artefact((home or state_home()) / "artefacts")
    if found is None:
        remedy = "`agentenv setup --isolation firecracker` fetches it, or put a release on PATH as `firecracker`; it needs /dev/kvm."
        return Finding("firecracker", "missing", "not installed", remedy=remedy, without=_WITHOUT_FIRECRACKER)
    try:
        asked = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        summary = f"{found} does not run: {getattr(error, 'strerror', None) or 'no answer'}"
        remedy = "Install the release for this machine's architecture."
        return Finding("firecracker", "failed", summary, remedy=remedy, without=_WITHOUT_FIRECRACKER, data={"path": found})
    version = re.search(r"v?(\d+\.\d+\.\d+\S*)", asked.stdout)
    if asked.returncode != 0 or version is None:
        summary = f"{found} --version says nothing usable (exit code {asked.returncode})"
        return Finding("firecracker", "failed", summary, remedy="Install it anew.", without=_WITHOUT_FIRECRACKER, data={"path": found})
    return Finding("firecracker", "ok", f"{version[1]} ({found})", data={"path": found, "version": version[1]})


def _artefact(folder: Path) -> str | None:
    candidates = sorted(folder.glob("**/firecracker*")) if folder.is_dir() else []
    return next((str(path) for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


def docker() -> Finding:
    """Docker's daemon, asked for its version over its own socket (DOCKER_HOST, or the usual ones)."""
    address = os.environ.get("DOCKER_HOST") or _usual_socket()
    client = shutil.which("docker")
    data: dict[str, object] = {"address": address, "client": client}
    if address is None:
        summary = "no daemon's socket" + ("" if client else ", no docker command")
        remedy = "Install Docker and start its service, or set DOCKER_HOST."
        return Finding("docker", "missing", summary, remedy=remedy, without=_WITHOUT_DOCKER, data=data)
    try:
        version = _ask_client(client) if client and address.startswith("ssh://") else _ask_daemon(address)
    except PermissionError:
        remedy = "Join its group: `usermod -aG docker USER`, then log in again."
        return Finding("docker", "missing", f"{address} may not be used by you", remedy=remedy, without=_WITHOUT_DOCKER, data=data)
    except (OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError) as error:
        summary = f"the daemon at {address} does not answer: {error}"
        return Finding("docker", "missing", summary, remedy="Start it: `systemctl start docker`.", without=_WITHOUT_DOCKER, data=data)
    return Finding("docker", "ok", f"daemon {version} at {address}", data=data | {"version": version})


def _usual_socket() -> str | None:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places = [Path("/var/run/docker.sock"), *([Path(runtime, "docker.sock")] if runtime else [])]
    return next((f"unix://{path}" for path in places if path.exists()), None)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_PATIENCE)
        self.sock.connect(self._path)


def _ask_client(client: str) -> str:
    """The daemon's version through the docker command, which knows how to go through ssh. Raises SubprocessError, OSError."""
    command = [client, "version", "--format", "{{.Server.Version}}"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True)
    return asked.stdout.strip()


def _ask_daemon(address: str) -> str:
    """The daemon's version (GET /version of the Engine API). Raises OSError, HTTPException, ValueError."""
    parts = urlsplit(address)
    if parts.scheme == "unix":
        connection: http.client.HTTPConnection = _UnixConnection(parts.path)
    elif parts.scheme in {"tcp", "http"} and parts.hostname:
        connection = http.client.HTTPConnection(parts.hostname, parts.port or 2375, timeout=_PATIENCE)
    else:
        raise ValueError(f"only unix:// and tcp:// addresses can be asked, not {parts.scheme}://")
    try:
        connection.request("GET", "/version")
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"it answered {answer.status} {answer.reason}")
        return str(json.loads(answer.read())["Version"])
    except KeyError as error:
        raise ValueError("its answer names no version") from error
    finally:
        connection.close()
