"""Who we are to a registry: what `docker login` or `podman login` has written down, or a program that keeps it.

The format is Docker's (https://docs.docker.com/reference/cli/docker/login/): `auths`, `credHelpers` and `credsStore` of config.json.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentenv.images.oci.reference import DOCKER_HUB
from agentenv.monitoring.files import read_json

_HUB_KEY = "https://index.docker.io/v1/"
_PATIENCE = 20.0
_TOKEN_USER = "<token>"
"""The name under which helpers hand out a refresh token instead of a password."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user with a password, or a refresh token (`identity`) alone."""

    user: str = ""
    secret: str = field(default="", repr=False)
    identity: str | None = field(default=None, repr=False)


def find_credentials(registry: str) -> Credentials | None:
    """What this user has for `registry`; None where nobody logged in. A helper that fails counts as nothing."""
    for path in _files():
        if (config := read_json(path)) is not None and (found := _of_file(config, registry)) is not None:
            return found
    return None


def _files() -> list[Path]:
    """Where Podman and Docker write, the file that was named first."""
    named = os.environ.get("REGISTRY_AUTH_FILE")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    docker = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    return [*([Path(named)] if named else []), docker, *([Path(runtime, "containers/auth.json")] if runtime else [])]


def _of_file(config: dict[str, Any], registry: str) -> Credentials | None:
    keys = [registry, f"https://{registry}", f"https://{registry}/v1/", f"https://{registry}/v2/"]
    if registry == DOCKER_HUB:
        keys.insert(0, _HUB_KEY)
    helpers = config.get("credHelpers") or {}
    for key in keys:
        if (helper := helpers.get(key) or config.get("credsStore")) and (found := _ask(str(helper), key)) is not None:
            return found
        entry = (config.get("auths") or {}).get(key)
        if isinstance(entry, dict) and (found := _of_entry(entry)) is not None:
            return found
    return None


def _of_entry(entry: dict[str, Any]) -> Credentials | None:
    if token := entry.get("identitytoken"):
        return Credentials(identity=str(token))
    if not entry.get("auth"):
        return Credentials(str(entry["username"]), str(entry.get("password", ""))) if entry.get("username") else None
    try:
        user, _, secret = base64.b64decode(str(entry["auth"])).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return Credentials(user, secret.rstrip("\0"))


def _ask(helper: str, key: str) -> Credentials | None:
    """A helper's answer (https://github.com/docker/docker-credential-helpers)."""
    program = shutil.which(f"docker-credential-{helper}")
    if program is None:
        return None
    try:
        done = subprocess.run([program, "get"], input=key, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        answer = json.loads(done.stdout) if done.returncode == 0 else {}
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
    user, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
    if not secret:
        return None
    return Credentials(identity=secret) if user == _TOKEN_USER else Credentials(user, secret)
