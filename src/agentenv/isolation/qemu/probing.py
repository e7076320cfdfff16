"""What QEMU there is, what runs its guests, and what the backend can promise."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import BackendUnavailable, ConfigError
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.contract import Capabilities, Probe
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.vm.disk import find_tool
from agentenv.isolation.vm.kvm import native_kvm
from agentenv.units import parse_size

NAME = "qemu"
DISK_RATE = "AGENTENV_QEMU_DISK_RATE"
"""Bytes a second that each machine may read and write on its disk, as in `50MB`; by default as fast as the disk is."""


@dataclass(frozen=True, slots=True)
class Qemu:
    """The program, its version, and how it runs guests: by the `accelerator` "kvm" or "tcg", with a processor of the model `cpu`."""

    program: Path
    version: str
    accelerator: str
    cpu: str
    disk_rate: int | None = None

    @classmethod
    def find(cls, store: ArtefactStore, environment: Mapping[str, str] = os.environ) -> Qemu:
        """Raises `BackendUnavailable` where there is none that can be used, `ConfigError` for a rate that is none."""
        if platform.machine() != "x86_64":
            raise BackendUnavailable("the QEMU backend is for x86-64.", remedy="Use `isolation: gvisor` or `namespace`.")
        found = store.require(NAME)
        accelerator, cpu = ("kvm", "host") if native_kvm().native else ("tcg", "max")
        return cls(found.path, found.version, accelerator, cpu, _rate(environment))


def _rate(environment: Mapping[str, str]) -> int | None:
    text = environment.get(DISK_RATE)
    if text is None:
        return None
    try:
        rate = parse_size(text)
    except ValueError as error:
        raise ConfigError(f"{DISK_RATE} is {text!r}, which is no size: {error}.", remedy="Write bytes a second, as in `50MB`.") from error
    if rate <= 0:
        raise ConfigError(f"{DISK_RATE} is {text!r}.", remedy="Write bytes a second, as in `50MB`, or leave it out.")
    return rate


def probe(qemu: Qemu, store: ArtefactStore, cgroups: CgroupTree) -> Probe:
    """Whether all is there that a machine is put together from; the first start needs a few seconds to do that."""
    try:
        store.require("kernel")
        if not (find_tool("mkfs.erofs") or find_tool("mksquashfs")):
            raise BackendUnavailable(
                "no program makes root images: neither mkfs.erofs nor mksquashfs.", remedy="apt-get install erofs-utils"
            )
        if not find_tool("mkfs.ext4"):
            raise BackendUnavailable("there is no mkfs.ext4 for the disks of machines.", remedy="apt-get install e2fsprogs")
    except BackendUnavailable as error:
        return Probe(NAME, usable=False, version=qemu.version, reason=error.message, remedy=error.remedy)
    return Probe(NAME, usable=True, version=f"QEMU {qemu.version} ({qemu.accelerator})", capabilities=capabilities(qemu, cgroups))


def capabilities(qemu: Qemu, cgroups: CgroupTree) -> Capabilities:
    """What can be promised with this QEMU and the cgroups that can be used."""
    root = os.geteuid() == 0
    lost = [
        *(text for text in cgroups.lost if not text.startswith(("memory", "processes"))),
        "resize: memory and processors can be taken back and given again, but not beyond what a sandbox started with.",
        "disk: what a sandbox removes goes on taking room on the host's disk until it ends, unless AGENTENV_BLANKS=off lets it boot.",
        "memory: kills for want of memory are read from the guest's console, which a program in it may fill.",
    ]
    if qemu.accelerator == "tcg":
        lost.append(f"speed: the processor is emulated, about twenty times slower than it is ({native_kvm().reason or 'no KVM'})")
    if not root:
        lost.append("network: only root can connect a machine to one.")
    return Capabilities(
        memory_snapshot=True,
        filesystem_snapshot=True,
        pause=True,
        live_resize=True,
        memory_limit=True,
        cpu_limit="cpu" in cgroups.controllers,
        process_limit=True,
        disk_limit=True,
        network=root,
        users=True,
        rootless=not root,
        hardware_isolation=qemu.accelerator == "kvm",
        disk_image=True,
        lost=tuple(lost),
    )
