"""What the tests of this room share: tiny machines in one owner's directory, and what must be gone in the end."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.machines import obtain_or_skip, shared_store

from agentenv.errors import BackendUnavailable
from agentenv.isolation.firecracker.counter import count
from agentenv.isolation.firecracker.jail import ROOT, UPPER
from agentenv.isolation.firecracker.launcher import Launcher, Vmm, require_devices
from agentenv.isolation.firecracker.release import Programs, Release
from agentenv.isolation.firecracker.snapshot import read_facts
from agentenv.isolation.firecracker.vm import Boot, Vm
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.vm.kvm import native_kvm

MEMORY = 16
"""MiB of a tiny machine."""

PAGES = 50
"""Pages of 4 KiB that it touches before it counts."""

_DISK = 1 << 20
_PATIENCE = 10.0


def find_programs(*, jailed: bool = True) -> Programs:
    """The real ones; the test is skipped with the reason where they cannot be had, or no machine can be made."""
    found = native_kvm()
    if not found.usable:
        pytest.skip(f"no virtual machines here: {found.reason}")
    if jailed and os.geteuid() != 0:
        pytest.skip("the jailer needs root")
    for name in ("firecracker", "jailer"):
        obtain_or_skip(name)
    try:
        if jailed:
            require_devices(Path(tempfile.gettempdir()))
        return Programs.find(shared_store(), jailed=jailed)
    except BackendUnavailable as error:
        pytest.skip(error.message)


@dataclass
class VmYard:
    """One owner's directory with a launcher in it."""

    launcher: Launcher
    directory: Path
    kernel: Path
    _vmms: list[Vmm] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def new(self, name: str) -> Path:
        """A path for something new."""
        return self.directory / f"{name}{next(self._numbers)}"

    def drives(self) -> Mapping[str, Path]:
        """One read-only disk and one that is written."""
        paths = {ROOT: self.directory / "root", UPPER: self.new("upper")}
        for path in paths.values():
            with path.open("wb") as file:
                file.truncate(_DISK)
        return paths

    async def launch(self) -> Vmm:
        """A process, which `close` ends at the latest."""
        vmm = await self.launcher.launch()
        self._vmms.append(vmm)
        return vmm

    async def close(self) -> None:
        """Ends what a test has left running."""
        for vmm in self._vmms:
            await vmm.end()
        await self.launcher.close()

    async def boot(self, *, kernel: Path | None = None, memory: int = MEMORY) -> Vm:
        """A machine that counts; on failure nothing of it is left."""
        async with AsyncExitStack() as held:
            vmm = await self.launch()
            held.push_async_callback(vmm.end)
            vm = await Vm.boot(vmm, self.release, Boot(kernel or self.kernel, "", memory, drives=self.drives(), image="tiny"))
            held.pop_all()
        return vm

    async def load(self, checkpoint: Path, *, resume: bool = True) -> Vm:
        """A machine from a checkpoint; on failure nothing of it is left."""
        facts = read_facts(checkpoint, self.release)
        async with AsyncExitStack() as held:
            vmm = await self.launch()
            held.push_async_callback(vmm.end)
            vm = await Vm.load(vmm, self.release, checkpoint, facts, self.drives(), resume=resume)
            held.pop_all()
        return vm

    async def checkpoint(self, vm: Vm, parent: Path | None = None) -> Path:
        """A checkpoint of a paused machine."""
        directory = self.new("checkpoint")
        directory.mkdir()
        await vm.checkpoint(directory, parent)
        return directory

    @property
    def release(self) -> Release:
        return self.launcher.programs.release

    def leftovers(self) -> list[str]:
        """Jails and cgroups of this owner."""
        jails = [str(path) for path in (self.directory / "jails").glob("*/*")]
        return jails + CgroupTree.discover().by_owner().get(self.launcher.owner, [])


def counted(vm: Vm) -> int:
    """The last count that it has printed, 0 before the first."""
    return count(vm.vmm.monitor.output) or 0


async def counts_beyond(vm: Vm, number: int) -> int:
    """Returns when it has printed a count above `number`, with that."""
    async with asyncio.timeout(_PATIENCE):
        while (now := counted(vm)) <= number:
            assert vm.vmm.monitor.ended is None, vm.vmm.monitor.output
            await vm.vmm.monitor.more()
    return now


async def first_count(vm: Vm) -> int:
    """The first count that a restored machine prints whole."""
    await counts_beyond(vm, 0)
    lines = [line for line in vm.vmm.monitor.output.split("\n") if len(line) == 16]
    return int(lines[0], 16)
