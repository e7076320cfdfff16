"""A backend with a small image in a directory of its own, and what tests do with its machines."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from agentenv.guest import Command, Connection, files
from agentenv.guest.errors import AgentFailure
from agentenv.guest.processes import start as start_process
from agentenv.isolation.contract import MachineSpec, Network, Resources, RootFilesystem, Timeouts
from agentenv.isolation.qemu.backend import QemuBackend
from agentenv.isolation.qemu.machine import QemuMachine
from agentenv.isolation.vm import clone_disk
from agentenv.isolation.vm.disk import DISK

MEMORY = 192 << 20
COUNTER = "exec 3<> <(:); for ((n = 1; ; n++)); do echo $n > /tmp/count; read -t 0.05 -u 3; done"
"""Of bash, without another process: those are slow where the processor is emulated."""


@dataclass
class Machines:
    """`owner` is the directory that machines' own lie in."""

    owner: Path
    backend: QemuBackend
    root: RootFilesystem
    number: int = 0

    def spec(
        self, *, disk: Path | None = None, startup: float = 100.0, network: Network | None = None, memory: int = MEMORY
    ) -> MachineSpec:
        """What to start; with `disk`, its writable disk is a copy of that."""
        self.number += 1
        name = f"q{self.number}"
        directory = self.owner / name
        directory.mkdir()
        if disk is not None:
            (directory / "upper").mkdir()
            clone_disk(disk, directory / DISK)
        return MachineSpec(
            name,
            directory,
            self.root,
            f"box-{name}",
            Resources(memory=memory, cpu=1, storage=256 << 20, pids=100),
            network or Network(),
            timeouts=Timeouts(startup=startup, shutdown=20.0),
        )

    async def start(self) -> QemuMachine:
        return await self.backend.start(self.spec())

    async def written_down(self, machine: QemuMachine, name: str) -> Path:
        """A checkpoint and, beside it, the disk, as the node takes them."""
        place = self.owner / name
        (place / "memory").mkdir(parents=True)
        agent = Connection.open(machine.dial())
        await agent.call("freeze", seconds=100.0)
        await machine.pause()
        try:
            await machine.checkpoint(place / "memory")
            clone_disk(machine.directory / DISK, place / "disk.img")
        finally:
            await machine.resume()
        await agent.call("thaw")
        agent.close()
        return place

    async def copy(self, written: Path) -> QemuMachine:
        """A machine that goes on from there and has been told so."""
        machine = await self.backend.restore(self.spec(disk=written / "disk.img"), written / "memory")
        agent = Connection.open(machine.dial())
        await agent.call("restored", realtime_ns=time.time_ns(), hostname=f"box-{machine.id}")
        agent.close()
        return machine


async def shell(machine: QemuMachine, line: str) -> str:
    agent = Connection.open(machine.dial())
    try:
        process = start_process(agent, Command(argv=("/bin/sh", "-c", line), timeout=60.0))
        await process.ended()
        return (process.stdout + process.stderr).decode()
    finally:
        agent.close()


async def counts_on(machine: QemuMachine, beyond: int = 0) -> int:
    """Returns how far its counter has come when that is more than `beyond`, and has become more meanwhile."""
    agent, first = Connection.open(machine.dial()), None
    try:
        while True:
            try:
                told = (await files.read(agent, "/tmp/count")).decode()
            except AgentFailure:
                continue  # it has not begun
            count = int(told or 0)  # empty in the moment in which it is written anew
            if first is None and count > beyond:
                first = count
            if first is not None and count > first:
                return count
    finally:
        agent.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
