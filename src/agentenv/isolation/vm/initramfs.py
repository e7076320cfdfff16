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
EXTRAS = ("virtio_net", "virtio_balloon", "virtio_rng", "tcp_diag")
"""A network, memory given back, random numbers at once, and the closing of connections after a restore."""


@dataclass(frozen=True, slots=True)
class Initramfs:
    """An initramfs on disk, and the names of the modules in it."""

    path: Path
    modules: tuple[str, ...]


def module_names(transport: Transport, root_filesystem: str, *, pci: bool) -> tuple[str, ...]:
    """What a guest needs of its kernel beyond what every kernel has, in the order in which it is wanted."""
    bus = ("virtio_pci",) if pci else ()
    return (*DEVICES, *bus, TRANSPORTS[transport], ROOT_FILE_SYSTEMS[root_filesystem], "ext4", "overlay", *EXTRAS)


def build_initramfs(agent: Path, modules: Path | None, names: tuple[str, ...], directory: Path) -> Initramfs:
    """The initramfs with `agent` and the modules `names` of the tree `modules` (lib/modules/RELEASE), kept in `directory`.

    Without a tree everything is taken to be built into the kernel. The archive is not compressed, so that the kernel has nothing to unpack.
    """
    ordered = [] if modules is None else ModuleTree(modules).in_order(names)
    content = cpio.archive(
        [
            cpio.directory("dev"),
            # What the kernel gives to its first program as standard streams, before devtmpfs is mounted.
            cpio.character_device("dev/console", 5, 1),
            cpio.directory("modules"),
            *(cpio.file(f"modules/{number:02}-{name}.ko", data) for number, (name, data) in enumerate(ordered)),
            cpio.file("init", agent.read_bytes(), 0o755),
        ]
    )
    path = directory / f"{hashlib.sha256(content).hexdigest()[:32]}.cpio"
    write_once(path, content)
    return Initramfs(path, tuple(name for name, _ in ordered))
