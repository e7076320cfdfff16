"""The files that differ between two sandboxes of one image: who they are called, and whom they ask for names.

They form a layer of their own between the image and the snapshots, so that no snapshot carries its parent's name to a child,
while a file that the sandbox itself changed is kept.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from agentenv.isolation.contract import RootFilesystem, Tree

NAME = "identity"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def new_machine_id() -> str:
    """A fresh id as machine-id(5) wants it: 32 lower-case hexadecimal digits."""
    return secrets.token_hex(16)


def write_identity(directory: Path, hostname: str, machine_id: str, nameservers: tuple[str, ...]) -> Path:
    """Writes the layer into `identity/etc` below the machine's `directory`, which exists, and returns it.

    Without `nameservers` the image's own /etc/resolv.conf stays.
    """
    layer = directory / NAME
    etc = f"{layer}/etc"
    _write(f"{etc}/hostname", f"{hostname}\n")
    _write(f"{etc}/hosts", f"127.0.0.1 localhost\n127.0.1.1 {hostname}\n::1 localhost ip6-localhost ip6-loopback\n")
    if nameservers:
        _write(f"{etc}/resolv.conf", resolver_configuration(nameservers))
    _write(f"{etc}/machine-id", f"{machine_id}\n")
    return layer


def resolver_configuration(nameservers: tuple[str, ...]) -> str:
    """The text of /etc/resolv.conf (resolv.conf(5)) that has a sandbox ask these."""
    return "".join(f"nameserver {server}\n" for server in nameservers)


def with_identity(root: RootFilesystem, layer: Path) -> RootFilesystem:
    """The same root with the identity `layer` over its image's files."""
    first, *others = root.trees
    return RootFilesystem((Tree(first.target, first.name, (layer, *first.lowers)), *others), root.image, root.env, root.user, root.cwd)


def _write(path: str, content: str) -> None:
    descriptor = os.open(path, _NEW, 0o644)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)
