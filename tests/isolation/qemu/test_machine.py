"""A machine boots, runs commands, stands still, is written down, and goes on twice: one boot for all of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.isolation.qemu.machines import COUNTER, MEMORY, Machines, counts_on, names, shell

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState, SandboxDied
from agentenv.guest import Command, Connection
from agentenv.guest.processes import start as start_process
from agentenv.isolation.contract import Resources
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.qemu.checkpoint import FACTS
from agentenv.isolation.qemu.command import FIRST_PORTS
from agentenv.isolation.qemu.machine import QemuMachine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(150)]


async def test_it_runs_commands_in_a_machine_of_its_own(machines: Machines, machine: QemuMachine) -> None:
    assert machines.backend.probe().usable
    assert [stage.name for stage in machine.stages] == ["prepare", "launch", "boot", "agent"]
    assert await shell(machine, "hostname; nproc; pwd") == f"box-{machine.id}\n1\n/root\n"
    used = await machine.usage()
    assert used.memory_limit == MEMORY
    assert used.processes is not None
    assert used.processes > 1
    assert await machine.oom_kills() == ()
    assert await machine.process_limit_hits() == 0


async def test_many_connections_at_once_are_independent(machine: QemuMachine) -> None:
    answers = await asyncio.gather(*(shell(machine, f"echo {number}") for number in range(FIRST_PORTS + 3)))
    assert answers == [f"{number}\n" for number in range(FIRST_PORTS + 3)]
    assert machine.vmm.ports.plugged > FIRST_PORTS
    for _ in range(3):
        assert await shell(machine, "echo again") == "again\n"


async def test_a_paused_machine_stands_still(machine: QemuMachine, tmp_path: Path) -> None:
    with pytest.raises(InvalidState, match="a checkpoint is taken of a paused one"):
        await machine.checkpoint(tmp_path)
    await machine.pause()
    await machine.pause()
    waiting = asyncio.ensure_future(shell(machine, "echo on"))
    assert (await machine.usage()).processes is None
    with pytest.raises(InvalidState, match="is paused"):
        await machine.process_limit_hits()
    assert not waiting.done()
    await machine.resume()
    await machine.resume()
    assert await waiting == "on\n"


async def test_copies_go_on_where_it_was_written_down(machines: Machines, machine: QemuMachine) -> None:
    await shell(machine, "echo kept > /root/kept")
    agent = Connection.open(machine.dial())
    await start_process(agent, Command(argv=("/bin/bash", "-c", COUNTER), keep=True)).started()
    agent.close()
    before = await counts_on(machine)
    written = await machines.written_down(machine, "first")
    copies = await asyncio.gather(*(machines.copy(written) for _ in range(2)))
    names = [await shell(copy, "hostname; cat /root/kept; echo mine > /root/own; rm /root/kept") for copy in copies]
    assert names == [f"box-{copy.id}\nkept\n" for copy in copies]
    assert [await counts_on(copy, before) > before for copy in (machine, *copies)] == [True] * 3
    assert await shell(machine, "ls /root") == "kept\n"
    assert copies[0].stages[-1].name == "agent"

    # A copy can be written down in its turn, though its memory is not its own.
    third = await machines.copy(await machines.written_down(copies[0], "second"))
    assert await counts_on(third, before) > before
    assert await shell(third, "ls /root") == "own\n"
    with pytest.raises(CapabilityError, match="cannot get more: memory"):
        await third.resize(Resources(memory=2 * MEMORY))
    with pytest.raises(CapabilityError, match="started without a limit of its disk"):
        await third.resize(Resources(disk_write=1 << 20, pids=None))
    for copy in (*copies, third):
        await copy.kill()


async def test_a_failed_checkpoint_leaves_nothing_and_the_machine_goes_on(machine: QemuMachine, tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    target.mkdir()
    (target / FACTS).mkdir()  # where the last of its files is to be written
    await machine.pause()
    with pytest.raises(OSError, match="Is a directory"):
        await machine.checkpoint(target)
    assert names(target) == [FACTS]
    await machine.resume()
    assert await shell(machine, "echo on") == "on\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root mounts a small disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


async def test_a_full_disk_leaves_nothing_and_the_machine_goes_on(machine: QemuMachine, small_disk: Path) -> None:
    await machine.pause()
    with pytest.raises(OSError, match="No space left on device"):
        await machine.checkpoint(small_disk)
    assert names(small_disk) == []
    await machine.resume()
    assert await shell(machine, "echo on") == "on\n"


async def test_what_cannot_be_restored_is_one_error_and_leaves_nothing(machines: Machines) -> None:
    written = machines.owner / "first"
    (written / "memory/devices").write_bytes(b"")
    spec = machines.spec(disk=written / "disk.img")
    with pytest.raises(InfrastructureError, match="was cut off or changed"):
        await machines.backend.restore(spec, written / "memory")
    assert sorted(path.name for path in spec.directory.rglob("*")) == ["disk.img", "upper"]


async def test_its_disk_is_written_by_nobody_but_its_programs(machine: QemuMachine) -> None:
    """A kernel that fills tables of inodes in the background writes a gigabyte into the disk of every idle sandbox."""
    assert "noinit_itable" in (await shell(machine, "cat /proc/fs/ext4/*/options")).split()


async def test_the_end(machines: Machines, machine: QemuMachine) -> None:
    pid, group = machine.vmm.monitor.pid, machine.vmm.cgroup
    first = await machine.kill()
    assert first.reason == "it was killed"
    assert await machine.kill() == await machine.wait() == first
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(SandboxDied, match="it was killed"):
        machine.dial()
    with pytest.raises(SandboxDied):
        await machine.pause()
    assert group.name not in CgroupTree.discover().names()
    assert names(machine.directory) == ["upper"]
