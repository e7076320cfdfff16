"""What the host tells a guest at its start: the kernel's command line (docs/vm-guest.md)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import Enum

from agentenv.errors import ConfigError
from agentenv.isolation.vm.initramfs import Transport
from agentenv.isolation.vm.tsc import tsc_khz

VSOCK_PORT = 1024
LONGEST = 2048
"""COMMAND_LINE_SIZE of x86; what is behind it the kernel cuts off."""

_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")

_ALL = ("console=ttyS0", "quiet", "panic=-1", "cryptomgr.notests", "random.trust_cpu=on", "lsm=landlock,yama")
"""A panic resets the machine at once; nothing is spent on self-tests, nor on security modules for which an image has no rules."""


class Platform(Enum):
    """Whose virtual hardware the kernel meets."""

    FIRECRACKER = ("reboot=k", "pci=off", "i8042.noaux", "i8042.nomux", "i8042.dumbkbd")
    QEMU_KVM = ("reboot=t",)
    QEMU_TCG = ("reboot=t", "mitigations=off", "no_timer_check")


@dataclass(frozen=True, slots=True)
class GuestNetwork:
    """The guest's interface `eth0`: `address` with its prefix length ("10.0.0.2/30"), default `gateway`, `nameservers`. IPv4."""

    address: str
    gateway: str
    nameservers: tuple[str, ...] = ()

    def parameters(self) -> list[str]:
        """Raises `ConfigError` for what is no address."""
        try:
            ipaddress.IPv4Interface(self.address)
            for single in (self.gateway, *self.nameservers):
                ipaddress.IPv4Address(single)
        except ValueError as error:
            raise ConfigError(f"a guest's network cannot be set up: {error}.") from error
        if "/" not in self.address:
            raise ConfigError(f"a guest's address needs its prefix length, as in {self.address}/30.")
        names = [f"agentenv.dns={','.join(self.nameservers)}"] if self.nameservers else []
        return [f"agentenv.ip=eth0,{self.address},{self.gateway}", *names]


@dataclass(frozen=True, slots=True)
class GuestConfig:
    """A guest's start. `tmpfs_upper`: its writable files lie in its memory, of so many bytes at most (0: half of it), instead of on a disk.

    `pids` bounds processes and threads. `machine_id`: 32 hexadecimal digits; by default the guest draws its own.
    """

    hostname: str
    transport: Transport
    tmpfs_upper: int | None = None
    network: GuestNetwork | None = None
    pids: int | None = None
    machine_id: str | None = None

    def command_line(self, platform: Platform, *extra: str) -> str:
        """For the kernel; `extra` parameters come before ours. Raises `ConfigError` for values that cannot be passed on."""
        line = " ".join([*_ALL, *platform.value, *(_timing() if platform is Platform.QEMU_TCG else ()), *extra, *self._parameters()])
        if len(line.encode()) >= LONGEST:
            raise ConfigError(f"the guest's command line has {len(line.encode())} bytes, and the kernel takes {LONGEST - 1}.")
        return line

    def _parameters(self) -> list[str]:
        if not _HOSTNAME.fullmatch(self.hostname):
            raise ConfigError(f"{self.hostname!r} is no host name.", remedy="Use letters, digits, '-' and '.', at most 64 of them.")
        if self.machine_id is not None and not _MACHINE_ID.fullmatch(self.machine_id):
            raise ConfigError(f"{self.machine_id!r} is no machine-id.", remedy="It has 32 lower-case hexadecimal digits.")
        parameters = [f"agentenv.transport={'serial' if self.transport == 'serial' else f'vsock:{VSOCK_PORT}'}"]
        parameters.append(f"agentenv.hostname={self.hostname}")
        if self.tmpfs_upper is not None:
            parameters.append(f"agentenv.upper=tmpfs:{self.tmpfs_upper}" if self.tmpfs_upper else "agentenv.upper=tmpfs")
        if self.network is not None:
            parameters += self.network.parameters()
        if self.pids is not None:
            parameters.append(f"agentenv.pids={self.pids}")
        if self.machine_id is not None:
            parameters.append(f"agentenv.machine_id={self.machine_id}")
        return parameters


def _timing() -> tuple[str, ...]:
    """Without KVM a microvm has no clock against which the kernel could measure the processor's, which is the host's own.

    Nor one to watch it with: the ticks that the kernel takes for that are lost where the host is busy. It would then go by them alone, and
    fall behind by seconds.
    """
    khz = tsc_khz()
    return (f"tsc_early_khz={khz}", f"lpj={khz * 4}", "tsc=reliable")
