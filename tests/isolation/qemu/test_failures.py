"""What goes wrong with a start: each is one clear error, and nothing is left of the machine that was to be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.isolation.qemu.machines import Machines, names, shell

from agentenv.errors import BackendUnavailable, CapabilityError, ConfigError, InfrastructureError, InvalidState, SandboxDied, StartupTimeout
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.contract import MachineSpec, Resources, Tree
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.qemu import backend as backend_module
from agentenv.isolation.qemu.backend import QemuBackend
from agentenv.isolation.qemu.command import THROTTLE, memory
from agentenv.isolation.qemu.probing import DISK_RATE, Qemu
from agentenv.isolation.vm import GuestFiles, RootImage, prepare_guest
from agentenv.isolation.vm.process import Monitor

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(150)]


class Spawned(list[Monitor]):
    """The processes that were started, to be killed by the test."""

    def __init__(self) -> None:
        super().__init__()
        self._one = asyncio.Event()

    def append(self, monitor: Monitor) -> None:
        super().append(monitor)
        self._one.set()

    async def first(self) -> Monitor:
        await self._one.wait()
        return self[0]


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawned]:
    found = Spawned()

    class Noted(Monitor):
        def __init__(self, pid: int, pidfd: int, output: int) -> None:
            super().__init__(pid, pidfd, output)
            found.append(self)

    monkeypatch.setattr("agentenv.isolation.vm.process.Monitor", Noted)
    yield found
    assert [monitor for monitor in found if monitor.ended is None] == []


def prepare_otherwise(monkeypatch: pytest.MonkeyPatch, change: dict[str, object]) -> None:
    def prepare(*arguments: object, **options: object) -> GuestFiles:
        return replace(prepare_guest(*arguments, **options), **change)  # type: ignore[arg-type]

    monkeypatch.setattr(backend_module, "prepare_guest", prepare)


def expect_nothing_left(spec: MachineSpec, owner: str) -> None:
    assert [path.name for path in spec.directory.rglob("*")] in ([], ["upper"])
    assert [name for name in CgroupTree.discover().by_owner().get(owner, ()) if name.endswith(f"-{spec.id}")] == []


async def test_a_start_that_takes_too_long(machines: Machines, spawned: Spawned) -> None:
    spec = machines.spec(startup=0.4)
    with pytest.raises(StartupTimeout, match=r"MicroVM startup timeout after 0\.4 s in stage '\w+'.*timeouts\.startup") as caught:
        await machines.backend.start(spec)
    assert caught.value.parameter == "timeouts.startup"
    expect_nothing_left(spec, machines.owner.name)


async def test_a_qemu_that_is_killed_while_it_boots(machines: Machines, spawned: Spawned) -> None:
    spec = machines.spec()
    starting = asyncio.ensure_future(machines.backend.start(spec))
    (await spawned.first()).kill()
    with pytest.raises(InfrastructureError, match="QEMU was ended by SIGKILL before its agent answered"):
        await starting
    expect_nothing_left(spec, machines.owner.name)


async def test_a_start_that_is_given_up(machines: Machines, spawned: Spawned) -> None:
    spec = machines.spec()
    starting = asyncio.ensure_future(machines.backend.start(spec))
    await spawned.first()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    expect_nothing_left(spec, machines.owner.name)


async def test_a_kernel_that_is_none(machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spawned: Spawned) -> None:
    (tmp_path / "kernel").write_bytes(b"no kernel " * 1000)
    prepare_otherwise(monkeypatch, {"kernel": tmp_path / "kernel"})
    spec = machines.spec()
    with pytest.raises(InfrastructureError, match=r"QEMU ended with status 1 before.*kernel"):
        await machines.backend.start(spec)
    expect_nothing_left(spec, machines.owner.name)


async def test_an_image_that_no_machine_can_have(machines: Machines) -> None:
    spec = machines.spec()
    parts = (Tree("/", "@", (Path("/usr"),)), Tree("/usr", "usr", (Path("/usr"),)))
    with pytest.raises(CapabilityError, match="Use the image `debian`"):
        await machines.backend.start(replace(spec, root=replace(spec.root, trees=parts)))
    expect_nothing_left(spec, machines.owner.name)


@pytest.mark.soak
async def test_a_root_image_that_was_cut_off(machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spawned: Spawned) -> None:
    whole = prepare_guest(machines.root, ArtefactStore.open(), transport="serial", elf=False).root
    short = tmp_path / "short"
    short.write_bytes(whole.path.read_bytes()[:8192])
    prepare_otherwise(monkeypatch, {"root": RootImage(short, whole.filesystem)})
    spec = machines.spec()
    with pytest.raises(InfrastructureError, match=r"(?s)before its agent answered; it had printed: .*agentenv-agent: "):
        await machines.backend.start(spec)
    expect_nothing_left(spec, machines.owner.name)


@pytest.mark.soak
async def test_a_machine_that_is_killed(machines: Machines, tmp_path: Path) -> None:
    machine = await machines.start()
    await machine.pause()
    os.kill(machine.vmm.monitor.pid, 9)
    with pytest.raises((SandboxDied, InfrastructureError)):
        await machine.checkpoint(tmp_path)
    assert (await machine.wait()).reason == "its QEMU was ended by SIGKILL"
    assert names(tmp_path) == []
    with pytest.raises(SandboxDied, match="its QEMU was ended by SIGKILL"):
        await shell(machine, "true")


@pytest.mark.soak
async def test_memory_is_taken_back_and_given_again(machines: Machines) -> None:
    machine = await machines.backend.start(machines.spec(memory=256 << 20))
    before = await shell(machine, "read total < /proc/meminfo; echo $total")
    await machine.resize(Resources(memory=160 << 20, pids=None))
    assert await shell(machine, "read total < /proc/meminfo; echo $total") != before
    assert (await machine.usage()).memory_limit == 160 << 20
    with pytest.raises(InvalidState, match="uses too much memory to do with 16 MiB"):
        await machine.resize(Resources(memory=16 << 20, pids=None))
    await machine.resize(Resources(memory=256 << 20, pids=50))
    assert await shell(machine, "read total < /proc/meminfo; echo $total; cat /sys/fs/cgroup/agentenv/pids.max") == f"{before}51\n"
    assert (await machine.shut_down()).reason == "its agent ended"


@pytest.mark.soak
async def test_limits_of_the_disk_change_while_the_machine_runs(machines: Machines) -> None:
    spec = machines.spec()
    machine = await machines.backend.start(replace(spec, resources=replace(spec.resources, disk_write=8 << 20)))
    await machine.resize(Resources(disk_write=2 << 20, disk_iops=500, pids=None))
    told = await machine.vmm.qmp._execute("qom-get", {"path": f"/objects/{THROTTLE}", "property": "limits"})
    assert isinstance(told, dict)
    assert (told["bps-write"], told["bps-read"], told["iops-read"]) == (2 << 20, 0, 500)
    assert await shell(machine, "dd if=/dev/zero of=/root/x bs=64k count=32 conv=fsync 2>/dev/null && echo written") == "written\n"
    await machine.kill()


@pytest.mark.soak
async def test_a_guest_without_memory_ends_its_process_and_says_so(machines: Machines) -> None:
    machine = await machines.start()
    assert memory(Resources(memory=192 << 20)) == 192 << 20
    await shell(machine, "echo 1 > /proc/sys/vm/overcommit_memory; dd if=/dev/zero of=/dev/null bs=1G count=1")
    kills = await machine.oom_kills()
    assert [kill.process for kill in kills] == ["dd"]
    assert (await machine.kill()).evidence["oom_kills"] == kills


async def test_there_is_no_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_QEMU", str(tmp_path / "qemu"))
    with pytest.raises(BackendUnavailable, match="cannot be run"):
        Qemu.find(ArtefactStore.open(tmp_path))


@pytest.mark.parametrize("wrong", ["fast", "0", "-5MB"])
async def test_a_disk_rate_that_is_none(machines: Machines, wrong: str) -> None:
    with pytest.raises(ConfigError, match=DISK_RATE):
        Qemu.find(ArtefactStore.open(), {DISK_RATE: wrong})
    assert Qemu.find(ArtefactStore.open(), {DISK_RATE: "5MB"}).disk_rate == 5_000_000


async def test_a_closed_backend_starts_nothing(machines: Machines) -> None:
    other = await QemuBackend.open(machines.owner)
    await other.close()
    await other.close()
    with pytest.raises(InvalidState, match="is closed"):
        await other.start(machines.spec())
