"""The pinned manifest: versions, addresses and checksums of what can be fetched (manifest.toml beside this file)."""

from __future__ import annotations

import functools
import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.errors import InfrastructureError

BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """One table an artefact, as the file has them."""

    firecracker: dict[str, Any]
    kernel: dict[str, Any]
    runsc: dict[str, Any]
    qemu: dict[str, Any]


@functools.cache
def manifest() -> Manifest:
    """The manifest of this version of AgentENV."""
    return Manifest(**tomllib.loads(Path(__file__).with_name("manifest.toml").read_text()))


def sha256(path: Path) -> str:
    """The checksum of a file, as hexadecimal digits."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            hasher.update(block)
    return hasher.hexdigest()


def verify(path: Path, expected: str, what: str) -> None:
    """Raises `InfrastructureError` when the file is not the pinned one."""
    found = sha256(path)
    if found != expected:
        raise InfrastructureError(
            f"{what} is not what this version of AgentENV expects: its sha256 is {found}, not {expected}.",
            remedy="It is damaged or another version: fetch it again.",
        )
