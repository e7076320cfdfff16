"""A guest under QEMU's own emulation, started with nothing but a command line: what is tried is the guest, not a driver."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.machines import obtain_or_skip, shared_store
from tests.native.client import Client

from agentenv.isolation.contract import RootFilesystem, Tree
from agentenv.isolation.vm import GuestConfig, GuestFiles, GuestNetwork, Platform, dial_serial, make_upper, prepare_guest

PORTS = 4
BOOT_PATIENCE = 60.0
EXIT_PATIENCE = 60.0
NETWORK = GuestNetwork("10.0.2.15/24", "10.0.2.2", ("10.0.2.3",))
"""As QEMU's user-mode network has it: the host's loopback answers at the gateway's address."""


def plain(tree: Path) -> RootFilesystem:
    return RootFilesystem((Tree("/", "@", (tree,)),), f"dir:{tree}")


@dataclass
class EmulatedGuest:
    """One running guest; its files lie in `directory`, whose upper disk is made when there is none."""

    directory: Path
    files: GuestFiles
    config: GuestConfig = field(default_factory=lambda: GuestConfig("box", "serial", network=NETWORK, pids=64))
    extra: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        if not self.disk.exists() and self.config.tmpfs_upper is None:
            make_upper(self.disk, 1 << 30, shared_store())
        self.process = subprocess.Popen([str(obtain_or_skip("qemu")), *self._machine(), *self._devices()], stdin=subprocess.DEVNULL)

    @property
    def disk(self) -> Path:
        return self.directory / "disk.img"

    @property
    def console(self) -> str:
        return (self.directory / "console").read_text(errors="replace")

    def _machine(self) -> list[str]:
        base = ["-M", "microvm,acpi=on", "-cpu", "max", "-m", "256", "-smp", "2", "-nodefaults", "-no-user-config", "-no-reboot"]
        boot = ["-kernel", str(self.files.kernel), "-initrd", str(self.files.initrd)]
        line = self.config.command_line(Platform.QEMU_TCG, *self.extra)
        return [*base, "-display", "none", "-serial", f"file:{self.directory}/console", *boot, "-append", line]

    def _devices(self) -> list[str]:
        drives = [f"id=root,readonly=on,file={self.files.root.path}"]
        if self.config.tmpfs_upper is None:
            drives.append(f"id=upper,discard=unmap,file={self.disk}")
        options = []
        for drive in drives:
            options += ["-drive", f"if=none,format=raw,{drive}", "-device", f"virtio-blk-device,drive={drive[3 : drive.index(',')]}"]
        options += ["-netdev", "user,id=net", "-device", "virtio-net-device,netdev=net", "-device", "virtio-serial-device,max_ports=8"]
        for number in range(1, PORTS + 1):
            options += ["-chardev", f"socket,id=p{number},path={self.port(number)},server=on,wait=off"]
            options += ["-device", f"virtserialport,chardev=p{number},nr={number}"]
        return options

    def port(self, number: int) -> Path:
        return self.directory / f"port{number}"

    def dial(self, number: int = 1) -> Client:
        return Client(dial_serial(self.port(number), BOOT_PATIENCE))

    def await_ports(self) -> None:
        """QEMU makes its sockets before the guest runs; it is asked until it has."""
        for number in range(1, PORTS + 1):
            while not self.port(number).exists():
                assert self.process.poll() is None, "QEMU ended"
                os.sched_yield()

    def shell(self, client: Client, script: str, **parameters: object) -> str:
        outcome = client.run("sh", "-c", script, **parameters)
        assert outcome.result["exit_code"] == 0, (outcome.data, outcome.errors)
        return outcome.data.decode().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(EXIT_PATIENCE)


def guest_files(tree: Path) -> GuestFiles:
    obtain_or_skip("qemu")
    obtain_or_skip("kernel")
    return prepare_guest(plain(tree), shared_store(), transport="serial", elf=False)
