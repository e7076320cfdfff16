"""One running sandbox of the QEMU backend: a machine of its own with our agent in it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agentenv.errors import CapabilityError, InvalidState, SandboxDied, Stage
from agentenv.isolation.contract import MachineSpec, Resources
from agentenv.isolation.qemu import checkpoint as checkpoints
from agentenv.isolation.qemu.command import MOST_PORTS, throttle_of
from agentenv.isolation.qemu.launcher import Vmm
from agentenv.isolation.qemu.memory import write_memory
from agentenv.isolation.vm.finishing import finished, to_the_end
from agentenv.isolation.vm.machine import Body, GuestMachine

ANSWER_SECONDS = 30.0
_NO_PROGRESS = 5.0
"""Seconds in which a guest that is to give memory back gives none, after which it is taken at its word."""


class QemuMachine(GuestMachine):
    """A sandbox in a machine of its own, reached through virtio-serial ports. Made by `QemuBackend`."""

    monitor_name = "QEMU"
    answer_seconds = ANSWER_SECONDS

    def __init__(
        self,
        vmm: Vmm,
        spec: MachineSpec,
        stages: tuple[Stage, ...],
        *,
        qemu: str,
        first: socket.socket | None,
        on_end: Callable[[QemuMachine], None],
    ) -> None:
        """Takes over `vmm` and `first`, a connection on which the agent has answered. `qemu` is the version; `on_end` is called once."""
        super().__init__(Body(vmm.monitor, vmm.cgroup, vmm.hardware.memory, vmm.hardware.processors, vmm.end), spec, stages)
        self._vmm = vmm
        self._qemu = qemu
        self._first = first
        self._on_end = on_end

    @property
    def vmm(self) -> Vmm:
        """The QEMU behind it."""
        return self._vmm

    def dial(self) -> socket.socket:
        """A fresh blocking connection to the agent.

        Raises `SandboxDied`, `InvalidState` when all ports are in use, of which a machine has thirty.
        """
        self._check()
        connection, self._first = self._first, None
        if connection is not None:
            return connection
        try:
            return self._vmm.ports.take()
        except OSError as error:
            raise SandboxDied(self.id, f"its agent cannot be reached ({error})", evidence={"last_output": self._vmm.output}) from error

    async def checkpoint(self, directory: Path, parent: Path | None = None) -> None:
        """Writes memory and devices of the paused machine into the empty `directory`.

        Of a machine that goes on from another checkpoint only what it has written itself since; `parent` changes nothing. Raises
        `InvalidState` when it runs, `InfrastructureError` or OSError for a full disk; then `directory` is empty again, and the machine
        goes on when it is resumed.
        """
        self._require_paused()
        vmm = self._vmm
        free = vmm.ports.free
        if not free:
            raise InvalidState(f"all {MOST_PORTS} connections of sandbox {self.id} are in use, and a copy of it needs one.")
        hardware = replace(vmm.hardware, ports=vmm.ports.plugged)
        try:
            await vmm.qmp.save_devices(directory / checkpoints.DEVICES)
            address = await vmm.qmp.memory_address()
            await finished(lambda: write_memory(vmm.monitor.pid, address, hardware.memory, vmm.base, directory))
            await finished(lambda: checkpoints.write_facts(directory, qemu=self._qemu, hardware=hardware, root=vmm.root, free=free))
        except BaseException:
            await to_the_end(asyncio.to_thread(checkpoints.empty, directory))
            self._check()
            raise

    async def _stop(self) -> None:
        # Only then would a copy have a port to be reached over.
        await self._vmm.ports.settle()
        await self._vmm.qmp.stop()

    async def _go_on(self) -> None:
        await self._vmm.qmp.go_on()

    def _ended(self) -> None:
        if self._first is not None:
            self._first.close()
        self._on_end(self)

    async def _limit_disks(self, resources: Resources) -> None:
        rate = self._vmm.disk_rate
        if throttle_of(self._spec.resources, rate) is None:
            raise CapabilityError(
                f"sandbox {self.id} was started without a limit of its disk, and QEMU cannot put one before a disk in use.",
                remedy="Start it with `disk_read`, `disk_write` or `disk_iops`, as high as you like; they can be changed then.",
            )
        await self._vmm.qmp.throttle(throttle_of(resources, rate) or {})

    async def _set_memory(self, size: int) -> None:
        qmp = self._vmm.qmp
        before = now = await qmp.memory_size()
        qmp.memory_changed.clear()
        await qmp.set_memory(size)
        while now != size:
            try:
                async with asyncio.timeout(_NO_PROGRESS):
                    await qmp.memory_changed.wait()
                qmp.memory_changed.clear()
                now = await qmp.memory_size()
            except TimeoutError as error:
                if (now := await qmp.memory_size()) == size:
                    return
                await qmp.set_memory(before)
                raise InvalidState(
                    f"sandbox {self.id} uses too much memory to do with {size >> 20} MiB: it went down to {now >> 20} and no further.",
                    remedy="End processes in it first, or leave it more.",
                ) from error
