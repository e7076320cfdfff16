"""What a running machine is like whoever makes it: its limits, its figures and its end, over an agent and a monitor's process."""

from __future__ import annotations

import asyncio
import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState, SandboxDied, Stage
from agentenv.guest import Connection
from agentenv.isolation.contract import Exit, MachineSpec, OomKill, Resources, Usage
from agentenv.isolation.namespace.agent_call import call
from agentenv.isolation.namespace.cgroups import Cgroup
from agentenv.isolation.vm import console, guest_limits
from agentenv.isolation.vm.disk import DISK
from agentenv.isolation.vm.process import Ended, Monitor

_BLOCK = 512
_MIB = 1 << 20


def whole_mib(size: int) -> int:
    """Bytes, in whole MiB: at least so many."""
    return math.ceil(size / _MIB) * _MIB


@dataclass(frozen=True, slots=True)
class Body:
    """What a machine is made of: its monitor's process, the host's cgroup of that, and what it started with (`memory` in bytes).

    `free` ends the monitor and frees all that it held.
    """

    monitor: Monitor
    cgroup: Cgroup
    memory: int
    processors: int
    free: Callable[[], Awaitable[None]]


class GuestMachine(ABC):
    """A sandbox in a machine of its own. What is particular to a monitor is in the sub-class."""

    passes_descriptors = False
    monitor_name: ClassVar[str]
    answer_seconds: ClassVar[float]
    """How long its agent may take to answer."""

    def __init__(self, body: Body, spec: MachineSpec, stages: tuple[Stage, ...]) -> None:
        """Takes over `body`. `spec` says how much memory it has now."""
        self.stages = stages
        self._body = body
        self._spec = spec
        self._paused = False
        self._killed = False
        self._settling = asyncio.create_task(self._settle(), name=f"end of sandbox {spec.id}")

    @property
    def id(self) -> str:
        """The id that the machine was asked for with."""
        return self._spec.id

    @property
    def directory(self) -> Path:
        """The machine's own directory, with its `upper/`."""
        return self._spec.directory

    @abstractmethod
    def dial(self) -> socket.socket:
        """A fresh blocking connection to the agent. Raises `SandboxDied`, `InfrastructureError` when the guest does not answer."""

    @abstractmethod
    async def _stop(self) -> None:
        """Stops the processors."""

    @abstractmethod
    async def _go_on(self) -> None:
        """Lets them run."""

    @abstractmethod
    async def _set_memory(self, size: int) -> None:
        """Leaves the guest `size` bytes, whole MiB, of its memory: the balloon takes the others, or gives them back."""

    @abstractmethod
    async def _limit_disks(self, resources: Resources) -> None:
        """Holds its disks to the limits of `resources`. Raises `CapabilityError` where that cannot be done while it runs."""

    @abstractmethod
    def _ended(self) -> None:
        """The machine has ended, and all that it held is free."""

    async def pause(self) -> None:
        """Stops the machine's processors. Raises `InfrastructureError`."""
        self._check()
        if not self._paused:
            await self._stop()
            self._paused = True

    async def resume(self) -> None:
        """Lets them go on. Raises `InfrastructureError`."""
        self._check()
        if self._paused:
            await self._go_on()
            self._paused = False

    async def resize(self, resources: Resources) -> None:
        """Changes limits of the live machine: what it has more of memory than is wanted now is taken by its balloon.

        Raises `CapabilityError` for more memory, processors or storage than it was started with, `InvalidState` for processors and
        processes of a paused one, and where the guest does not give the memory back; `InfrastructureError`.
        """
        self._check()
        self._require_within(resources)
        if resources.cpu is not None or resources.pids is not None:
            self._require_running()
        wanted = self._spec.resources.changed_by(resources)
        if resources.limits_disks:
            await self._limit_disks(wanted)
        if resources.memory is not None:
            await self._set_memory(whole_mib(resources.memory))
        if resources.cpu is not None:
            await asyncio.to_thread(self._body.cgroup.apply, Resources(cpu=resources.cpu, pids=None))
            await self._told(lambda agent: guest_limits.show_processors(agent, math.ceil(resources.cpu or 1), self._body.processors))
        if resources.pids is not None:
            await self._told(lambda agent: guest_limits.limit_processes(agent, resources.pids or 1))
        self._spec = replace(self._spec, resources=wanted)

    async def usage(self) -> Usage:
        """What the host's cgroup accounts of the monitor, and what the agent tells, while it runs."""
        self._check()
        disk = self._spec.directory / DISK
        usage = replace(
            self._body.cgroup.usage(),
            memory_limit=self._memory_limit,
            storage=await asyncio.to_thread(lambda: disk.stat().st_blocks * _BLOCK),
            processes=None,
        )
        if self._paused:
            return usage
        told = await self._ask("stats")
        memory = usage.memory if usage.memory is not None else told.get("memory")
        cpu_seconds = usage.cpu_seconds if usage.cpu_seconds is not None else told.get("cpu_seconds")
        total, used = told.get("disk_total"), told.get("disk_used")
        free = None if total is None or used is None else total - used
        return replace(usage, memory=memory, cpu_seconds=cpu_seconds, processes=told.get("threads"), storage_free=free)

    async def oom_kills(self) -> tuple[OomKill, ...]:
        """The guest's kills for want of memory that its console still shows, the oldest first."""
        self._check()
        return self._oom_kills()

    async def process_limit_hits(self) -> int:
        """How often the guest refused a fork because of `pids`. Raises `InvalidState` while it is paused."""
        self._check()
        return await self._told(guest_limits.process_limit_hits)

    async def shut_down(self) -> Exit:
        """Has the guest end its processes and write its disk, and ends it by force where that takes longer than `timeouts.shutdown`."""
        self._check()
        seconds = self._spec.timeouts.shutdown
        try:
            if self._paused:
                await self.resume()
            await self._ask("shutdown", grace=seconds / 2)
            async with asyncio.timeout(seconds):
                return await self.wait()
        except (InfrastructureError, TimeoutError):
            return await self.kill()

    async def kill(self) -> Exit:
        """Ends the machine whatever state it is in, and frees all that it held. Idempotent."""
        if self._body.monitor.ended is None:
            self._killed = True
            self._body.monitor.kill()
        return await self.wait()

    async def wait(self) -> Exit:
        """Returns when the machine has ended by whatever cause, and all it held is free."""
        return await asyncio.shield(self._settling)

    @property
    def _memory_limit(self) -> int:
        """Bytes that the guest has at present."""
        return whole_mib(self._spec.resources.memory or self._body.memory)

    async def _settle(self) -> Exit:
        exited = self._exit(await self._body.monitor.wait())
        await self._body.free()
        self._ended()
        return exited

    def _exit(self, ended: Ended) -> Exit:
        output = self._body.monitor.output
        return Exit(ended.exit_code, ended.signal, self._reason(ended, output), {"oom_kills": self._oom_kills(), "last_output": output})

    def _reason(self, ended: Ended, output: str) -> str:
        if self._killed:
            return "it was killed"
        if (why := console.panic(output)) is not None:
            return f"its kernel gave up: {why}"
        # A monitor ends well when the guest resets, which is what the agent does at its end.
        return "its agent ended" if ended.exit_code == 0 else f"its {self.monitor_name} {ended}"

    def _oom_kills(self) -> tuple[OomKill, ...]:
        size = self._memory_limit
        return tuple(OomKill(limit=size, peak=size, process=name) for name in console.killed_for_memory(self._body.monitor.output))

    def _check(self) -> None:
        ended = self._body.monitor.ended
        if ended is not None:
            raise self._died(ended)

    def _died(self, ended: Ended) -> SandboxDied:
        how = self._exit(ended)
        return SandboxDied(self.id, how.reason, evidence=how.evidence)

    def _require_paused(self) -> None:
        """Raises `SandboxDied`, or `InvalidState` when it runs."""
        self._check()
        if not self._paused:
            raise InvalidState(f"sandbox {self.id} runs; a checkpoint is taken of a paused one.")

    def _require_running(self) -> None:
        """Raises `InvalidState` while it is paused."""
        if self._paused:
            raise InvalidState(f"sandbox {self.id} is paused, and only its guest could answer that.", remedy="Let it go on first.")

    def _require_within(self, resources: Resources) -> None:
        body, known = self._body, self._spec.resources
        beyond = {
            "memory": resources.memory is not None and whole_mib(resources.memory) > body.memory,
            "cpu": resources.cpu is not None and resources.cpu > body.processors,
            "storage": resources.storage is not None and resources.storage != known.storage,
        }
        if wrong := [name for name, is_beyond in beyond.items() if is_beyond]:
            raise CapabilityError(
                f"the machine of sandbox {self.id} has {body.memory >> 20} MiB of memory, {body.processors} processors and one disk, and "
                f"cannot get more: {', '.join(wrong)}.",
                remedy="Start it with the most that it will need, and take back what it does not need yet.",
            )

    async def _ask(self, operation: str, **parameters: float) -> dict[str, Any]:
        return await asyncio.to_thread(lambda: call(self.dial(), operation, timeout=self.answer_seconds, content=None, **parameters))

    async def _told(self, work: Callable[[Connection], Awaitable[guest_limits.Told]]) -> guest_limits.Told:
        """What `work` learns over a connection to the agent. Raises `InvalidState` while it is paused."""
        self._require_running()
        agent = Connection.open(await asyncio.to_thread(self.dial))
        try:
            return await work(agent)
        finally:
            agent.close()
