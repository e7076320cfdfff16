"""One running sandbox of the Firecracker backend: a virtual machine with our agent in it."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from pathlib import Path

from agentenv.errors import InfrastructureError, Stage
from agentenv.isolation.contract import MachineSpec, Resources
from agentenv.isolation.firecracker.jail import VSOCK
from agentenv.isolation.firecracker.settings import Settings
from agentenv.isolation.firecracker.vm import Vm
from agentenv.isolation.vm.machine import Body, GuestMachine, whole_mib
from agentenv.isolation.vm.streams import dial_vsock

ANSWER_SECONDS = 10.0
_DEFAULT_MEMORY = 2 << 10
_MOST_CORES = 32  # Firecracker's MAX_SUPPORTED_VCPUS


def memory_of(resources: Resources) -> int:
    """MiB of a machine: as asked for, else 2 GiB, or half of the host's where that is less. What a guest never touches takes nothing."""
    if resources.memory is not None:
        return whole_mib(resources.memory) >> 20
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return min(_DEFAULT_MEMORY, host // 2)


def cores_of(resources: Resources) -> int:
    """Processors of a machine, whole ones: the host's cgroup holds it to the fraction that was asked for. By default all of the host's."""
    wanted = len(os.sched_getaffinity(0)) if resources.cpu is None else math.ceil(resources.cpu)
    return max(1, min(wanted, _MOST_CORES))


class FirecrackerMachine(GuestMachine):
    """A sandbox in a machine of its own, reached through Firecracker's vsock. Made by `FirecrackerBackend`."""

    monitor_name = "Firecracker"
    answer_seconds = ANSWER_SECONDS

    def __init__(
        self,
        vm: Vm,
        spec: MachineSpec,
        stages: tuple[Stage, ...],
        *,
        cores: int,
        settings: Settings,
        on_end: Callable[[FirecrackerMachine], None],
    ) -> None:
        """Takes over `vm`. `cores` are its processors; `on_end` is called once, when all is free."""
        super().__init__(Body(vm.vmm.monitor, vm.vmm.cgroup, vm.memory_mib << 20, cores, vm.kill), spec, stages)
        self._vm = vm
        self._settings = settings
        self._on_end = on_end

    @property
    def vm(self) -> Vm:
        """The virtual machine without regard to what runs in it."""
        return self._vm

    def dial(self) -> socket.socket:
        """A fresh blocking connection to the agent. Raises `SandboxDied`, `InfrastructureError` when the guest does not answer."""
        self._check()
        try:
            return dial_vsock(self._vm.vmm.jail.root / VSOCK, ANSWER_SECONDS)
        except OSError as error:
            self._check()
            raise InfrastructureError(f"the agent of sandbox {self.id} cannot be reached: {error.strerror or error}.") from error

    async def checkpoint(self, directory: Path, parent: Path | None = None) -> None:
        """Writes memory and devices of the paused machine into the empty `directory`.

        What has changed since `parent`, where that is the last checkpoint of it or the one that it came from; see `Vm.checkpoint`. Raises
        `InvalidState` when it runs, `InfrastructureError`; then `directory` is empty, and the machine goes on when it is resumed.
        """
        self._require_paused()
        await self._vm.checkpoint(directory, parent)

    async def _stop(self) -> None:
        await self._vm.pause()

    async def _go_on(self) -> None:
        await self._vm.resume()

    async def _set_memory(self, size: int) -> None:
        await self._vm.resize_balloon(self._vm.memory_mib - (size >> 20))

    async def _limit_disks(self, resources: Resources) -> None:
        await self._vm.limit(self._settings.limits_of(resources))

    def _ended(self) -> None:
        self._on_end(self)
