"""One running sandbox of the Firecracker backend: a virtual machine with our agent in it."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState, SandboxDied, Stage
from agentenv.guest import Connection, files
from agentenv.isolation.contract import Exit, MachineSpec, OomKill, Resources, Usage
from agentenv.isolation.firecracker.jail import VSOCK
from agentenv.isolation.firecracker.vm import Vm
from agentenv.isolation.namespace.agent_call import call
from agentenv.isolation.vm import console
from agentenv.isolation.vm.process import Ended
from agentenv.isolation.vm.streams import dial_vsock

ANSWER_SECONDS = 10.0
DISK = Path("upper/disk.img")
"""The writable disk in a machine's directory."""

_DEFAULT_MEMORY = 2 << 10
_MOST_CORES = 32  # Firecracker's MAX_SUPPORTED_VCPUS
_PIDS = "/sys/fs/cgroup/agentenv"  # in the guest
_BLOCK = 512


def memory_of(resources: Resources) -> int:
    """MiB of a machine: as asked for, else 2 GiB, or half of the host's where that is less. What a guest never touches takes nothing."""
    if resources.memory is not None:
        return math.ceil(resources.memory / (1 << 20))
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return min(_DEFAULT_MEMORY, host // 2)


def cores_of(resources: Resources) -> int:
    """Processors of a machine, whole ones: the host's cgroup holds it to the fraction that was asked for. By default all of the host's."""
    wanted = len(os.sched_getaffinity(0)) if resources.cpu is None else math.ceil(resources.cpu)
    return max(1, min(wanted, _MOST_CORES))


class FirecrackerMachine:
    """A sandbox in a machine of its own, reached through Firecracker's vsock. Made by `FirecrackerBackend`."""

    passes_descriptors = False

    def __init__(
        self, vm: Vm, spec: MachineSpec, stages: tuple[Stage, ...], cores: int, on_end: Callable[[FirecrackerMachine], None]
    ) -> None:
        """Takes over `vm`. `cores` are its processors; `on_end` is called once, when all is free."""
        self.stages = stages
        self._vm = vm
        self._spec = spec
        self._cores = cores
        self._on_end = on_end
        self._paused = False
        self._killed = False
        self._settling = asyncio.create_task(self._settle(), name=f"end of sandbox {spec.id}")

    @property
    def id(self) -> str:
        """The id that the machine was asked for with."""
        return self._spec.id

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

    async def pause(self) -> None:
        """Stops the machine's processors. Raises `InfrastructureError`."""
        self._check()
        if not self._paused:
            await self._vm.pause()
            self._paused = True

    async def resume(self) -> None:
        """Lets them go on. Raises `InfrastructureError`."""
        self._check()
        if self._paused:
            await self._vm.resume()
            self._paused = False

    async def checkpoint(self, directory: Path, parent: Path | None = None) -> None:
        """Writes memory and devices of the paused machine into the empty `directory`.

        What has changed since `parent`, where that is the last checkpoint of it or the one that it came from; see `Vm.checkpoint`. Raises
        `InvalidState` when it runs, `InfrastructureError`; then `directory` is empty, and the machine goes on when it is resumed.
        """
        self._check()
        if not self._paused:
            raise InvalidState(f"sandbox {self.id} runs; a checkpoint is taken of a paused one.")
        await self._vm.checkpoint(directory, parent)

    async def resize(self, resources: Resources) -> None:
        """Changes limits of the live machine: what it has more of memory than is wanted now is taken by its balloon.

        Raises `CapabilityError` for more memory, processors or storage than it was started with, `InfrastructureError`.
        """
        self._check()
        self._require_within(resources)
        if resources.memory is not None:
            await self._vm.resize_balloon(self._vm.memory_mib - memory_of(resources))
        if resources.cpu is not None:
            await asyncio.to_thread(self._vm.vmm.cgroup.apply, Resources(cpu=resources.cpu, pids=None))
        if resources.pids is not None:
            await self._write(f"{_PIDS}/pids.max", str(resources.pids + 1))  # the agent is one more
        changed = {name: value for name in ("cpu", "memory", "pids") if (value := getattr(resources, name)) is not None}
        self._spec = replace(self._spec, resources=replace(self._spec.resources, **changed))

    async def usage(self) -> Usage:
        """What the host's cgroup accounts of the monitor, and what the agent tells, while it runs."""
        self._check()
        disk = self._spec.directory / DISK
        usage = replace(
            self._vm.vmm.cgroup.usage(),
            memory_limit=self._spec.resources.memory or self._vm.facts.memory,
            storage=await asyncio.to_thread(lambda: disk.stat().st_blocks * _BLOCK),
            processes=None,
        )
        if self._paused:
            return usage
        told = await self._ask("stats")
        memory = usage.memory if usage.memory is not None else told.get("memory")
        cpu_seconds = usage.cpu_seconds if usage.cpu_seconds is not None else told.get("cpu_seconds")
        return replace(usage, memory=memory, cpu_seconds=cpu_seconds, processes=told.get("threads"))

    async def oom_kills(self) -> tuple[OomKill, ...]:
        """The guest's kills for want of memory that its console still shows, the oldest first."""
        self._check()
        return self._oom_kills()

    async def process_limit_hits(self) -> int:
        """How often the guest refused a fork because of `pids`."""
        self._check()
        agent = Connection.open(await asyncio.to_thread(self.dial))
        try:
            events = (await files.read(agent, f"{_PIDS}/pids.events")).decode()
        finally:
            agent.close()
        return int(dict(line.split() for line in events.splitlines()).get("max", 0))

    async def kill(self) -> Exit:
        """Ends the machine whatever state it is in, and frees all that it held. Idempotent."""
        if self._vm.vmm.monitor.ended is None:
            self._killed = True
            self._vm.vmm.monitor.kill()
        return await self.wait()

    async def wait(self) -> Exit:
        """Returns when the machine has ended by whatever cause, and all it held is free."""
        return await asyncio.shield(self._settling)

    async def _settle(self) -> Exit:
        ended = await self._vm.vmm.monitor.wait()
        await self._vm.kill()
        self._on_end(self)
        return self._exit(ended)

    def _exit(self, ended: Ended) -> Exit:
        output = self._vm.vmm.monitor.output
        evidence: dict[str, object] = {"oom_kills": self._oom_kills(), "last_output": output}
        return Exit(ended.exit_code, ended.signal, self._reason(ended, output), evidence)

    def _oom_kills(self) -> tuple[OomKill, ...]:
        size = self._vm.memory_mib - self._vm.facts.balloon << 20
        return tuple(OomKill(limit=size, peak=size, process=name) for name in console.killed_for_memory(self._vm.vmm.monitor.output))

    def _reason(self, ended: Ended, output: str) -> str:
        if self._killed:
            return "it was killed"
        if (why := console.panic(output)) is not None:
            return f"its kernel gave up: {why}"
        if ended.signal is not None:
            return f"its Firecracker was ended by {signal.Signals(ended.signal).name}"
        return "its agent ended" if ended.exit_code == 0 else f"its Firecracker ended with status {ended.exit_code}"

    def _check(self) -> None:
        ended = self._vm.vmm.monitor.ended
        if ended is not None:
            how = self._exit(ended)
            raise SandboxDied(self.id, how.reason, evidence=how.evidence)

    def _require_within(self, resources: Resources) -> None:
        known = self._spec.resources
        beyond: Mapping[str, bool] = {
            "memory": resources.memory is not None and memory_of(resources) > self._vm.memory_mib,
            "cpu": resources.cpu is not None and math.ceil(resources.cpu) > self._cores,
            "storage": resources.storage is not None and resources.storage != known.storage,
        }
        if wrong := [name for name, is_beyond in beyond.items() if is_beyond]:
            raise CapabilityError(
                f"the virtual machine of sandbox {self.id} has {self._vm.memory_mib} MiB of memory, {self._cores} processors and one disk, "
                f"and cannot get more: {', '.join(wrong)}.",
                remedy="Start it with the most that it will need, and take back what it does not need yet.",
            )

    async def _ask(self, operation: str, **parameters: object) -> dict[str, Any]:
        return await asyncio.to_thread(lambda: call(self.dial(), operation, timeout=ANSWER_SECONDS, **parameters))

    async def _write(self, path: str, text: str) -> None:
        agent = Connection.open(await asyncio.to_thread(self.dial))
        try:
            await files.write(agent, path, text.encode(), append=True)
        finally:
            agent.close()
