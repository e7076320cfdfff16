"""The whole way with a Linux guest, wherever the processor runs KVM: an agent answers, memory goes on in forks, limits hold.

Everything that is checked of any backend is checked by `agentenv conformance firecracker`; here is what is Firecracker's own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.machines import obtain_or_skip, small_root

from agentenv.errors import BackendUnavailable
from agentenv.guest import Command, Connection
from agentenv.guest.processes import start as start_process
from agentenv.isolation.contract import MachineSpec, Resources, RootFilesystem, Timeouts, Tree
from agentenv.isolation.firecracker import open_backend
from agentenv.isolation.firecracker.backend import FirecrackerBackend
from agentenv.isolation.firecracker.machine import FirecrackerMachine
from agentenv.isolation.namespace.agent_call import call
from agentenv.isolation.vm import clone_disk
from agentenv.isolation.vm.disk import DISK
from agentenv.isolation.vm.kvm import native_kvm

pytestmark = [pytest.mark.timeout(600), pytest.mark.soak]

MIB = 1 << 20
COUNTER = "n=0; while :; do n=$((n + 1)); echo $n > /tmp/count; done"


@dataclass
class LinuxYard:
    """A backend, and the small root that its machines run."""

    backend: FirecrackerBackend
    directory: Path
    root: RootFilesystem

    def spec(self, name: str) -> MachineSpec:
        directory = self.directory / name
        directory.mkdir()
        resources = Resources(memory=256 * MIB, cpu=1, storage=256 * MIB, pids=64)
        return MachineSpec(name, directory, self.root, name, resources, timeouts=Timeouts(startup=60.0))


@pytest.fixture
async def linux(tmp_path: Path) -> AsyncIterator[LinuxYard]:
    found = native_kvm()
    if not found.native:
        pytest.skip(f"no Linux guest here: {found.reason}")
    for name in ("firecracker", "jailer", "kernel"):
        obtain_or_skip(name)
    directory = tmp_path / f"o{uuid.uuid4().hex[:8]}"
    directory.mkdir(mode=0o700)
    root = RootFilesystem((Tree("/", "@", (small_root(tmp_path / "root"),)),), "small")
    try:
        backend = await open_backend(directory)
    except BackendUnavailable as error:
        pytest.skip(error.message)
    yield LinuxYard(backend, directory, root)
    await backend.close()


async def shell(machine: FirecrackerMachine, line: str) -> str:
    agent = Connection.open(machine.dial())
    try:
        process = start_process(agent, Command(argv=("/bin/sh", "-c", line)))
        await process.ended()
        return process.stdout.decode()
    finally:
        agent.close()


async def test_forks_of_a_running_linux_go_on_and_diverge(linux: LinuxYard) -> None:
    parent = await linux.backend.start(linux.spec("parent"))
    await shell(parent, f"echo kept > /root/file; sh -c '{COUNTER}' >/dev/null 2>&1 &")
    await asyncio.to_thread(lambda: call(parent.dial(), "freeze", timeout=10.0, seconds=60.0))
    await parent.pause()
    checkpoint = linux.directory / "checkpoint"
    checkpoint.mkdir()
    await parent.checkpoint(checkpoint)
    disk = linux.directory / "disk.img"
    await asyncio.to_thread(clone_disk, linux.directory / "parent" / DISK, disk)
    await parent.resume()
    await asyncio.to_thread(lambda: call(parent.dial(), "thaw", timeout=10.0))
    at_least = int(await shell(parent, "cat /tmp/count"))
    children = [await fork(linux, f"child{number}", checkpoint, disk) for number in range(3)]
    for child in children:
        assert await shell(child, "cat /root/file; hostname") == f"kept\n{child.id}\n"
        while int(await shell(child, "cat /tmp/count") or 0) < at_least:
            continue
        await shell(child, f"echo {child.id} > /root/file")
    assert await shell(parent, "cat /root/file") == "kept\n"
    assert len({await shell(child, "head -c 16 /dev/urandom | od") for child in children}) == 3


async def fork(linux: LinuxYard, name: str, checkpoint: Path, disk: Path) -> FirecrackerMachine:
    spec = linux.spec(name)
    (spec.directory / DISK).parent.mkdir()
    await asyncio.to_thread(shutil.copyfile, disk, spec.directory / DISK)
    child = await linux.backend.restore(spec, checkpoint)
    await asyncio.to_thread(
        lambda: call(
            child.dial(),
            "restored",
            timeout=10.0,
            entropy=os.urandom(64),
            realtime_ns=time.time_ns(),
            hostname=name,
            machine_id=uuid.uuid4().hex,
        )
    )
    return child


async def test_the_guest_sees_what_it_was_given(linux: LinuxYard) -> None:
    machine = await linux.backend.start(linux.spec("machine"))
    assert await shell(machine, "nproc") == "1\n"
    usage = await machine.usage()
    assert usage.memory_limit == 256 * MIB
    assert usage.processes is not None
    await machine.resize(Resources(memory=128 * MIB, pids=32))
    while (await machine.vm.balloon()).actual_mib < 100:
        continue
    assert await shell(machine, "cat /sys/fs/cgroup/agentenv/pids.max") == "33\n"
    assert await machine.process_limit_hits() == 0
