"""The initramfs of a guest: our agent as /init and the modules that it loads, in their order. The same inputs give the same bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentenv.isolation.artefacts.storing import write_once
from agentenv.isolation.vm import cpio
from agentenv.isolation.vm.modules import ModuleTree

Transport = Literal["serial", "vsock"]

DEVICES = ("virtio_mmio", "virtio_blk")
ROOT_FILE_SYSTEMS = {"erofs": "erofs", "squashfs": "squashfs"}
TRANSPORTS: dict[str, str] = {"serial": "virtio_console", "vsock": "vmw_vsock_virtio_transport"}
LATER = ("virtio_net", "virtio_balloon", "virtio_rng", "tcp_diag")
"""A network, memory given back, random numbers at once, and the closing of connections after a restore: loaded while the agent starts."""


@dataclass(frozen=True, slots=True)
class Initramfs:
    """An initramfs on disk, and the names of the modules in it."""

    path: Path
    modules: tuple[str, ...]


def module_names(transport: Transport, root_filesystem: str, *, pci: bool) -> tuple[str, ...]:
    """What a guest needs of its kernel before its agent can serve, in the order in which it is wanted."""
    bus = ("virtio_pci",) if pci else ()
    return (*DEVICES, *bus, TRANSPORTS[transport], ROOT_FILE_SYSTEMS[root_filesystem], "ext4", "overlay")


def build_initramfs(
    agent: Path, modules: Path | None, names: tuple[str, ...], directory: Path, later: tuple[str, ...] = LATER
) -> Initramfs:
    """The initramfs with `agent` and modules of the tree `modules` (lib/modules/RELEASE), kept in `directory`.

    It loads `names` before anything else, and `later` while the machine already goes on.

    Without a tree everything is taken to be built into the kernel. The archive is not compressed, so that the kernel has nothing to unpack.
    """
    ordered, first = _ordered(modules, names, later)
    content = cpio.archive(
        [
            cpio.directory("dev"),
            # What the kernel gives to its first program as standard streams, before devtmpfs is mounted.
            cpio.character_device("dev/console", 5, 1),
            cpio.directory("modules"),
            cpio.directory("later"),
            *(
                cpio.file(f"{'modules' if number < first else 'later'}/{number:02}-{name}.ko", data)
                for number, (name, data) in enumerate(ordered)
            ),
            cpio.file("init", agent.read_bytes(), 0o755),
        ]
    )
    path = directory / f"{hashlib.sha256(content).hexdigest()[:32]}.cpio"
    write_once(path, content)
    return Initramfs(path, tuple(name for name, _ in ordered))


def _ordered(modules: Path | None, names: tuple[str, ...], later: tuple[str, ...]) -> tuple[list[tuple[str, bytes]], int]:
    """All modules in their order, and how many of them `names` need."""
    if modules is None:
        return [], 0
    tree = ModuleTree(modules)
    return tree.in_order((*names, *later)), len(tree.in_order(names))
