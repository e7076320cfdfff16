"""The machine as the node sees it: a tiny guest with a real agent in the place of the one that it has not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.isolation.firecracker.machines import MEMORY, VmYard, counted, counts_beyond
from tests.isolation.firecracker.standin import agent_at
from tests.isolation.sandboxes import Yard

from agentenv.errors import CapabilityError, InvalidState, SandboxDied
from agentenv.isolation.contract import Exit, Machine, MachineSpec, Resources, RootFilesystem, Tree
from agentenv.isolation.firecracker.jail import VSOCK
from agentenv.isolation.firecracker.machine import FirecrackerMachine, cores_of, memory_of
from agentenv.isolation.firecracker.settings import Settings
from agentenv.isolation.namespace.agent_call import call
from agentenv.isolation.vm.disk import DISK

MIB = 1 << 20
SECONDS = 10.0


@dataclass
class Started:
    """A machine, and those of which it was told that they have ended. `agent` is the directory of the sandbox that its agent is in."""

    machine: FirecrackerMachine
    ended: list[FirecrackerMachine]
    agent: Path


@pytest.fixture
async def started(vms: VmYard, yard: Yard) -> AsyncIterator[Started]:
    """Its guest counts; its agent is that of a namespace sandbox."""
    vm = await vms.boot()
    sandbox = yard.spec()
    await yard.backend.start(sandbox)
    directory = vms.new("machine")
    (directory / DISK).parent.mkdir(parents=True)
    (directory / DISK).write_bytes(b"x" * 8192)
    root = RootFilesystem((Tree("/", "@", (directory,)),), "tiny")
    spec = MachineSpec("m1", directory, root, "box", Resources(memory=MEMORY * MIB))
    ended: list[FirecrackerMachine] = []
    async with agent_at(vm.vmm.jail.root / VSOCK, sandbox.directory):
        machine = FirecrackerMachine(vm, spec, (), cores=2, settings=Settings(jailed=False), on_end=ended.append)
        yield Started(machine, ended, sandbox.directory)
        await machine.kill()


async def test_it_is_a_machine_with_an_agent(started: Started) -> None:
    machine = started.machine
    assert isinstance(machine, Machine)
    assert machine.id == "m1"
    told = await asyncio.to_thread(lambda: call(machine.dial(), "ping", timeout=SECONDS, payload=b"hello"))
    assert told == {"payload": b"hello"}


async def test_it_tells_what_it_uses_also_when_paused(started: Started) -> None:
    machine = started.machine
    usage = await machine.usage()
    assert usage.memory_limit == MEMORY * MIB
    assert usage.storage == 8192
    assert usage.processes is not None
    assert usage.memory is None or usage.memory > 0
    await machine.pause()
    paused = await machine.usage()
    assert (paused.processes, paused.storage) == (None, 8192)
    assert await machine.oom_kills() == ()


async def test_it_pauses_and_resumes_as_often_as_it_is_told(started: Started) -> None:
    machine = started.machine
    await counts_beyond(machine.vm, 1)
    for _ in range(2):
        await machine.pause()
    for _ in range(2):
        await machine.resume()
    await counts_beyond(machine.vm, counted(machine.vm) + 1)


async def test_it_is_written_down_only_when_paused(started: Started, tmp_path: Path) -> None:
    with pytest.raises(InvalidState, match="a checkpoint is taken of a paused one"):
        await started.machine.checkpoint(tmp_path / "checkpoint")
    await started.machine.pause()
    (tmp_path / "checkpoint").mkdir()
    await started.machine.checkpoint(tmp_path / "checkpoint")
    assert {path.name for path in (tmp_path / "checkpoint").iterdir()} == {"agentenv.json", "memory", "state"}


async def test_its_memory_is_taken_back_and_given_again(started: Started) -> None:
    machine = started.machine
    await counts_beyond(machine.vm, 1)
    await machine.resize(Resources(memory=10 * MIB, pids=None))
    assert (await machine.vm.balloon()).target_mib == MEMORY - 10
    assert (await machine.usage()).memory_limit == 10 * MIB
    await machine.resize(Resources(memory=MEMORY * MIB, pids=None))
    assert (await machine.vm.balloon()).target_mib == 0


async def test_its_guest_uses_as_many_processors_as_it_may(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    # The agent runs on this machine's kernel, whose own processors are not to be touched.
    monkeypatch.setattr("agentenv.isolation.vm.guest_limits._ONLINE", "/root/cpu{}-online")
    for cpu in (0.5, 2.0):
        await started.machine.resize(Resources(cpu=cpu, pids=None))
    assert (started.agent / "upper" / "root" / "root" / "cpu1-online").read_text() == "01"
    assert not (started.agent / "upper" / "root" / "root" / "cpu0-online").exists()


async def test_a_paused_one_is_not_asked_for_what_only_its_guest_can_do(started: Started) -> None:
    await started.machine.pause()
    with pytest.raises(InvalidState, match="is paused"):
        await started.machine.resize(Resources(cpu=1, pids=None))
    with pytest.raises(InvalidState, match="is paused"):
        await started.machine.process_limit_hits()


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        (Resources(memory=(MEMORY + 1) * MIB), "more: memory"),
        (Resources(cpu=2.5), "more: cpu"),
        (Resources(storage=MIB), "more: storage"),
        (Resources(cpu=9, memory=1 << 40), "more: memory, cpu"),
    ],
)
async def test_it_gets_no_more_than_it_started_with(started: Started, wish: Resources, named: str) -> None:
    with pytest.raises(CapabilityError, match=named):
        await started.machine.resize(wish)


async def test_killed_it_is_gone_and_says_so(started: Started, vms: VmYard) -> None:
    machine = started.machine
    waiting = asyncio.ensure_future(machine.wait())
    how = await machine.kill()
    assert (how.signal, how.reason) == (signal.SIGKILL, "it was killed")
    assert await machine.kill() is how
    assert await waiting is how
    assert started.ended == [machine]
    assert vms.leftovers() == []
    for operation in (machine.pause, machine.resume, machine.usage, machine.oom_kills, machine.process_limit_hits):
        with pytest.raises(SandboxDied, match="it was killed"):
            await operation()
    with pytest.raises(SandboxDied):
        machine.dial()


async def test_ended_from_outside_it_shows_what_it_last_printed(started: Started, vms: VmYard) -> None:
    machine = started.machine
    await counts_beyond(machine.vm, 1)
    os.kill(machine.vm.vmm.monitor.pid, signal.SIGKILL)
    how = await machine.wait()
    assert how.reason == "its Firecracker was ended by SIGKILL"
    assert "0000000000000001" in str(how.evidence["last_output"])
    with pytest.raises(SandboxDied, match="SIGKILL") as caught:
        await machine.pause()
    assert caught.value.evidence["oom_kills"] == ()
    assert vms.leftovers() == []


async def test_paused_it_can_be_killed(started: Started) -> None:
    await started.machine.pause()
    assert isinstance(await started.machine.kill(), Exit)


def test_what_a_machine_gets_of_the_host() -> None:
    assert memory_of(Resources(memory=MIB * 100 + 1)) == 101
    assert 0 < memory_of(Resources()) <= 2048
    assert cores_of(Resources(cpu=0.2)) == 1
    assert cores_of(Resources(cpu=2.5)) == 3
    assert cores_of(Resources(cpu=500)) == 32
    assert cores_of(Resources()) == min(32, len(os.sched_getaffinity(0)))
