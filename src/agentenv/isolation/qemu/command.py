"""QEMU's command line for one of our machines (qemu(1)): its virtual hardware, and what of it must be equal in a copy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentenv.isolation.contract import Resources
from agentenv.isolation.vm import Platform

DEFAULT_MEMORY = 512 << 20
"""Bytes of memory of a machine whose sandbox has no limit: a machine has some amount."""

DEFAULT_CPU = 1.0
MOST_PORTS = 30
"""QEMU's virtio-serial device has 31, of which the first is a console."""

FIRST_PORTS = 4
"""Ports that a machine has from the start: each takes half a MiB of its memory. More are plugged in when they are needed."""

TRANSLATIONS_MIB = 64
"""Memory for translated code, where the processor is emulated."""

THROTTLE = "rate"
"""What QEMU knows the group by that holds the disks to their limits, where there is one."""

_MIB = 1 << 20
_BASE = ("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none")

# What QEMU never needs once it runs; its own filter of system calls refuses it.
_SANDBOX = ("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a machine is made of, as far as its memory and the state of its devices fit to it.

    `memory` and `disk` are bytes. `ports` is how many virtio-serial ports it has, `network` whether it has an interface.
    """

    accelerator: str
    cpu: str
    processors: int
    memory: int
    disk: int
    ports: int
    network: bool

    @property
    def platform(self) -> Platform:
        """Whose hardware the guest's kernel meets."""
        return Platform.QEMU_KVM if self.accelerator == "kvm" else Platform.QEMU_TCG


def processors(resources: Resources) -> int:
    """How many virtual processors a machine has for `resources`."""
    return max(1, math.ceil(resources.cpu or DEFAULT_CPU))


def memory(resources: Resources) -> int:
    """Bytes of memory of a machine with `resources`: at least so many, in whole MiB, as QEMU would round them as well."""
    return math.ceil((resources.memory or DEFAULT_MEMORY) / _MIB) * _MIB


@dataclass(frozen=True, slots=True)
class Boot:
    """How a machine that starts anew gets its kernel."""

    kernel: Path
    initrd: Path
    command_line: str


@dataclass(frozen=True, slots=True)
class Copy:
    """How a machine goes on from a checkpoint: `memory` is mapped privately, `state` a descriptor of the devices' state."""

    memory: Path
    state: int


def throttle_of(resources: Resources, most: int | None) -> dict[str, int] | None:
    """What the disks of a machine with those limits are held to, `most` bytes a second in any case; None where they are not."""
    if not resources.limits_disks:
        return None if most is None else {"bps-total": most}
    # QEMU takes no total beside the two directions.
    rates = {"bps-read": resources.disk_read, "bps-write": resources.disk_write}
    limits = {name: min(wanted) for name, rate in rates.items() if (wanted := [one for one in (rate, most) if one])}
    return limits if resources.disk_iops is None else limits | {"iops-read": resources.disk_iops, "iops-write": resources.disk_iops}


@dataclass(frozen=True, slots=True)
class Tap:
    """The host's end of the guest's network interface: an open `descriptor`, its hardware address, and the MTU in bytes."""

    descriptor: int
    mac: str
    mtu: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about one process of QEMU. `control` and `ports` are descriptors: a connected socket for QMP, and listening ones.

    `throttle` is what its disks are held to together, in the words of QEMU's ThrottleLimits; None leaves nothing to limit later.
    """

    program: Path
    hardware: Hardware
    root: Path
    upper: Path
    control: int
    ports: tuple[int, ...]
    start: Boot | Copy
    tap: Tap | None = None
    throttle: Mapping[str, int] | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All that the process inherits."""
        state = (self.start.state,) if isinstance(self.start, Copy) else ()
        tap = (self.tap.descriptor,) if self.tap is not None else ()
        return (self.control, *self.ports, *state, *tap)

    def words(self) -> list[str]:
        """The command line."""
        return [str(self.program), *_BASE, *_SANDBOX, *self._machine(), *self._memory(), *self._start(), *self._disks(), *self._others()]

    def _machine(self) -> list[str]:
        hardware = self.hardware
        accelerator = "kvm" if hardware.accelerator == "kvm" else f"tcg,tb-size={TRANSLATIONS_MIB}"
        return [
            # microvm finds its devices by ACPI, which leaves the kernel's command line to us.
            *("-machine", "microvm,acpi=on,memory-backend=ram,suppress-vmdesc=on", "-accel", accelerator, "-cpu", hardware.cpu),
            *("-smp", str(hardware.processors), "-m", f"{hardware.memory}B"),
            # The devices' state alone has no section that describes its machine: that is what `Hardware` is for.
            *("-global", "migration.send-configuration=off"),
            *("-chardev", f"socket,id=control,fd={self.control}", "-mon", "chardev=control,mode=control"),
            *("-serial", "file:/dev/stdout"),
        ]

    def _memory(self) -> list[str]:
        size = f"size={self.hardware.memory}B"
        if isinstance(self.start, Copy):
            return ["-object", f"memory-backend-file,id=ram,{size},mem-path={_quoted(self.start.memory)},share=off"]
        return ["-object", f"memory-backend-ram,id=ram,{size}"]

    def _start(self) -> list[str]:
        if isinstance(self.start, Copy):
            return ["-incoming", f"fd:{self.start.state}"]
        return ["-kernel", str(self.start.kernel), "-initrd", str(self.start.initrd), "-append", self.start.command_line]

    def _disks(self) -> list[str]:
        # Nothing outlives a crash of the host, so nothing waits for its disk; and no copy throws away what is cached of the disks.
        common = "driver=file,drop-cache=off,cache.no-flush=on"
        # A copy cannot punch holes, since its memory's file must have none (`Warden.spawn`): it would believe to have made zeros.
        discard = "ignore" if isinstance(self.start, Copy) else "unmap"
        upper = ["-blockdev", f"{common},node-name=upper,discard={discard},filename={_quoted(self.upper)}"]
        root = ["-blockdev", f"{common},node-name=root,read-only=on,locking=off,filename={_quoted(self.root)}"]
        slow = ""
        if self.throttle is not None:
            slow = "slow-"
            root += ["-object", ",".join([f"throttle-group,id={THROTTLE}", *(f"x-{name}={rate}" for name, rate in self.throttle.items())])]
            root += ["-blockdev", f"driver=throttle,node-name=slow-root,read-only=on,throttle-group={THROTTLE},file=root"]
            upper += ["-blockdev", f"driver=throttle,node-name=slow-upper,throttle-group={THROTTLE},file=upper"]
        return [
            *(*root, "-device", f"virtio-blk-device,drive={slow}root"),
            *(*upper, "-device", f"virtio-blk-device,write-zeroes=off,drive={slow}upper"),
        ]

    def _others(self) -> list[str]:
        words = ["-device", "virtio-balloon-device,id=balloon,free-page-reporting=on", "-device", "virtio-rng-device"]
        if self.tap is not None:
            words += ["-netdev", f"tap,id=net,fd={self.tap.descriptor}"]
            words += ["-device", f"virtio-net-device,netdev=net,mac={self.tap.mac},host_mtu={self.tap.mtu}"]
        words += ["-device", f"virtio-serial-device,id=serial,max_ports={MOST_PORTS + 1}"]
        for number, descriptor in enumerate(self.ports, 1):
            words += ["-chardev", f"socket,id={channel(number)},fd={descriptor},server=on,wait=off"]
            words += ["-device", f"virtserialport,id={port(number)},nr={number},chardev={channel(number)}"]
        return words


def port(number: int) -> str:
    """The name of a port's device."""
    return f"port{number}"


def channel(number: int) -> str:
    """The name of the host's end of a port."""
    return f"channel{number}"


def _quoted(path: Path) -> str:
    """In QEMU's option lists a comma is written twice."""
    return str(path).replace(",", ",,")
