"""One running sandbox of the QEMU backend: a machine of its own with our agent in it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState, SandboxDied, Stage
from agentenv.guest import Connection, files
from agentenv.isolation.contract import Exit, MachineSpec, OomKill, Resources, Usage
from agentenv.isolation.namespace.agent_call import call
from agentenv.isolation.qemu import checkpoint as checkpoints
from agentenv.isolation.qemu.command import MOST_PORTS, memory, processors
from agentenv.isolation.qemu.launcher import DISK, Vmm
from agentenv.isolation.qemu.memory import write_memory
from agentenv.isolation.vm import console
from agentenv.isolation.vm.finishing import finished, to_the_end
from agentenv.isolation.vm.process import Ended

ANSWER_SECONDS = 30.0
_PIDS = "/sys/fs/cgroup/agentenv"  # in the guest
_BLOCK = 512
_NO_PROGRESS = 5.0
"""Seconds in which a guest that is to give memory back gives none, after which it is taken at its word."""


class QemuMachine:
    """A sandbox in a machine of its own, reached through virtio-serial ports. Made by `QemuBackend`."""

    passes_descriptors = False

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
        self.stages = stages
        self._vmm = vmm
        self._spec = spec
        self._qemu = qemu
        self._first = first
        self._on_end = on_end
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
            raise SandboxDied(self.id, f"its agent cannot be reached ({error})", evidence=self._evidence()) from error

    async def pause(self) -> None:
        """Stops the machine's processors, once a copy of it would have a port to be reached over."""
        self._check()
        if not self._paused:
            await self._vmm.ports.settle()
            await self._vmm.qmp.stop()
            self._paused = True

    async def resume(self) -> None:
        """Lets them go on."""
        self._check()
        if self._paused:
            await self._vmm.qmp.go_on()
            self._paused = False

    async def checkpoint(self, directory: Path, parent: Path | None = None) -> None:
        """Writes memory and devices of the paused machine into the empty `directory`.

        The memory is one whole file, of which a machine that was itself restored shares what it has not written with the file that it came
        from, where the file system can do that; `parent` changes nothing. Raises `InvalidState` when it runs, `InfrastructureError` or
        OSError for a full disk; then `directory` is empty again, and the machine goes on when it is resumed.
        """
        self._check()
        if not self._paused:
            raise InvalidState(f"sandbox {self.id} runs; a checkpoint is taken of a paused one.")
        vmm = self._vmm
        free = vmm.ports.free
        if not free:
            raise InvalidState(f"all {MOST_PORTS} connections of sandbox {self.id} are in use, and a copy of it needs one.")
        hardware = replace(vmm.hardware, ports=vmm.ports.plugged)
        try:
            await vmm.qmp.save_devices(directory / checkpoints.DEVICES)
            address = await vmm.qmp.memory_address()
            base = None if vmm.base is None else Path(f"/proc/self/fd/{vmm.base}")
            target = directory / checkpoints.MEMORY
            await finished(lambda: write_memory(vmm.monitor.pid, address, hardware.memory, base, target))
            await finished(lambda: checkpoints.write_facts(directory, qemu=self._qemu, hardware=hardware, root=vmm.root, free=free))
        except BaseException:
            await to_the_end(asyncio.to_thread(checkpoints.empty, directory))
            self._check()
            raise

    async def resize(self, resources: Resources) -> None:
        """Changes limits of the live machine: what it has more of memory than is wanted now is taken by its balloon.

        Raises `CapabilityError` for more than it was started with, `InvalidState` when its guest does not give that much memory back.
        """
        self._check()
        self._require_within(resources)
        if resources.memory is not None:
            await self._set_memory(memory(resources))
        if resources.cpu is not None:
            await asyncio.to_thread(self._vmm.cgroup.apply, Resources(cpu=resources.cpu, pids=None))
            await self._show_processors(processors(resources))
        if resources.pids is not None:
            await self._write(f"{_PIDS}/pids.max", str(resources.pids + 1))  # the agent is one more
        changed = {name: value for name in ("cpu", "memory", "pids") if (value := getattr(resources, name)) is not None}
        self._spec = replace(self._spec, resources=replace(self._spec.resources, **changed))

    async def usage(self) -> Usage:
        """What the host's cgroup accounts of QEMU, and what the agent tells, while it runs."""
        self._check()
        disk = self._spec.directory / DISK
        usage = replace(
            self._vmm.cgroup.usage(),
            memory_limit=memory(self._spec.resources),
            storage=await asyncio.to_thread(lambda: disk.stat().st_blocks * _BLOCK),
            processes=None,
        )
        if self._paused:
            return usage
        told = await self._ask("stats")
        used = usage.memory if usage.memory is not None else told.get("memory")
        cpu_seconds = usage.cpu_seconds if usage.cpu_seconds is not None else told.get("cpu_seconds")
        return replace(usage, memory=used, cpu_seconds=cpu_seconds, processes=told.get("threads"))

    async def oom_kills(self) -> tuple[OomKill, ...]:
        """The guest's kills for want of memory that its console still shows, the oldest first."""
        self._check()
        return self._oom_kills()

    async def process_limit_hits(self) -> int:
        """How often the guest refused a fork because of `pids`. Raises `InvalidState` while it is paused."""
        self._check()
        if self._paused:
            raise InvalidState(f"sandbox {self.id} is paused, and only its guest knows how often it refused a fork.")
        agent = Connection.open(await asyncio.to_thread(self.dial))
        try:
            events = (await files.read(agent, f"{_PIDS}/pids.events")).decode()
        finally:
            agent.close()
        return int(dict(line.split() for line in events.splitlines()).get("max", 0))

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
        if self._vmm.monitor.ended is None:
            self._killed = True
            self._vmm.monitor.kill()
        return await self.wait()

    async def wait(self) -> Exit:
        """Returns when the machine has ended by whatever cause, and all it held is free."""
        return await asyncio.shield(self._settling)

    async def _settle(self) -> Exit:
        ended = await self._vmm.monitor.wait()
        if self._first is not None:
            self._first.close()
        exited = self._exit(ended)
        await self._vmm.end()
        self._on_end(self)
        return exited

    def _exit(self, ended: Ended) -> Exit:
        return Exit(ended.exit_code, ended.signal, self._reason(ended), self._evidence())

    def _reason(self, ended: Ended) -> str:
        if self._killed:
            return "it was killed"
        if (why := console.panic(self._vmm.output)) is not None:
            return f"its kernel gave up: {why}"
        # QEMU ends well when the guest resets, which is what the agent does at its end.
        return "its agent ended" if ended.exit_code == 0 else f"its QEMU {ended}"

    def _check(self) -> None:
        ended = self._vmm.monitor.ended
        if ended is not None:
            how = self._exit(ended)
            raise SandboxDied(self.id, how.reason, evidence=how.evidence)

    def _oom_kills(self) -> tuple[OomKill, ...]:
        size = self._vmm.hardware.memory
        return tuple(OomKill(limit=size, peak=size, process=name) for name in console.killed_for_memory(self._vmm.output))

    def _evidence(self) -> dict[str, object]:
        return {"oom_kills": self._oom_kills(), "last_output": self._vmm.output}

    def _require_within(self, resources: Resources) -> None:
        hardware, known = self._vmm.hardware, self._spec.resources
        beyond = {
            "memory": resources.memory is not None and memory(resources) > hardware.memory,
            "cpu": resources.cpu is not None and resources.cpu > hardware.processors,
            "storage": resources.storage is not None and resources.storage != known.storage,
        }
        if wrong := [name for name, is_beyond in beyond.items() if is_beyond]:
            raise CapabilityError(
                f"the machine of sandbox {self.id} has {hardware.memory >> 20} MiB of memory, {hardware.processors} processors and one "
                f"disk, and cannot get more: {', '.join(wrong)}.",
                remedy="Start it with the most that it will need, and take back what it does not need yet.",
            )

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

    async def _ask(self, operation: str, **parameters: object) -> dict[str, Any]:
        return await asyncio.to_thread(lambda: call(self.dial(), operation, timeout=ANSWER_SECONDS, **parameters))

    async def _show_processors(self, count: int) -> None:
        """Has the guest use as many of its processors; its first one always runs (Documentation/core-api/cpu_hotplug.rst)."""
        for number in range(1, self._vmm.hardware.processors):
            await self._write(f"/sys/devices/system/cpu/cpu{number}/online", "1" if number < count else "0")

    async def _write(self, path: str, text: str) -> None:
        agent = Connection.open(await asyncio.to_thread(self.dial))
        try:
            await files.write(agent, path, text.encode(), append=True)
        finally:
            agent.close()
