"""The backend: what it restores and refuses, its pool, its time-outs. Linux comes up only where the processor runs KVM (test_linux)."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.isolation.firecracker.machines import MEMORY, VmYard, counts_beyond, first_count
from tests.machines import shared_store

from agentenv.errors import (
    BackendUnavailable,
    CapabilityError,
    ConfigError,
    InfrastructureError,
    InvalidState,
    StartupTimeout,
)
from agentenv.isolation.contract import Backend, Checkpointing, MachineSpec, Network, Resources, Restoring, RootFilesystem, Timeouts, Tree
from agentenv.isolation.firecracker import open_backend, pool, probing, settings
from agentenv.isolation.firecracker.api import RateLimiter, TokenBucket
from agentenv.isolation.firecracker.backend import FirecrackerBackend
from agentenv.isolation.firecracker.jail import ROOT, UPPER
from agentenv.isolation.firecracker.launcher import Vmm
from agentenv.isolation.firecracker.settings import Settings
from agentenv.isolation.firecracker.vm import Boot, Vm
from agentenv.isolation.vm import prepare_guest, root_image
from agentenv.isolation.vm.disk import DISK
from agentenv.isolation.vm.kvm import KvmFinding, native_kvm

MIB = 1 << 20


@dataclass
class BackendYard:
    """A backend whose machines are restored from checkpoints of the tiny guest."""

    vms: VmYard
    backend: FirecrackerBackend
    root: RootFilesystem
    image: Path
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def spec(self, **changes: object) -> MachineSpec:
        directory = self.vms.new("m")
        (directory / DISK).parent.mkdir(parents=True)
        with (directory / DISK).open("wb") as file:
            file.truncate(MIB)
        spec = MachineSpec(directory.name, directory, self.root, "box", timeouts=Timeouts(startup=20.0))
        return replace(spec, **changes)  # type: ignore[arg-type]

    async def checkpoint(self) -> Path:
        """Of a tiny guest with the disks that the backend gives its machines."""
        vmm = await self.vms.launcher.launch()
        drives = {ROOT: self.image, UPPER: self.spec().directory / DISK}
        vm = await Vm.boot(vmm, self.vms.release, Boot(self.vms.kernel, "", MEMORY, drives=drives, image=self.image.name))
        await counts_beyond(vm, 3)
        await vm.pause()
        directory = await self.vms.checkpoint(vm)
        await vm.kill()
        return directory


@pytest.fixture
async def tiny(vms: VmYard, tmp_path: Path) -> AsyncIterator[BackendYard]:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("the image")
    root = RootFilesystem((Tree("/", "@", (tree,)),), "tiny")
    try:
        image = root_image(root, shared_store().directory / "roots").path
    except BackendUnavailable as error:
        pytest.skip(error.message)
    backend = FirecrackerBackend(vms.launcher, shared_store(), Settings(jailed=True))
    yield BackendYard(vms, backend, root, image)
    await backend.close()
    assert vms.leftovers() == []


def require_kernel() -> None:
    """To fetch one takes too long for a short test."""
    if shared_store().find("kernel") is None:
        pytest.skip("no kernel in the tests' cache; `make soak` fetches it")


async def test_it_is_a_backend_that_restores(tiny: BackendYard) -> None:
    assert isinstance(tiny.backend, Backend)
    assert isinstance(tiny.backend, Restoring)
    assert tiny.backend.name == "firecracker"


async def test_an_image_that_was_cut_off_is_one_error_and_leaves_nothing(tiny: BackendYard) -> None:
    checkpoint, size = await tiny.checkpoint(), tiny.image.stat().st_size
    spec = tiny.spec()
    os.truncate(tiny.image, size // 2)
    try:
        with pytest.raises(InfrastructureError, match=f"{tiny.image.name} .* but has only {size // 2}: it was cut off"):
            await tiny.backend.restore(spec, checkpoint)
    finally:
        tiny.image.unlink()  # what is mapped of it is gone for good
    assert sorted(path.name for path in spec.directory.rglob("*")) == [Path(DISK).name, Path(DISK).parent.name]


async def test_machines_go_on_from_a_checkpoint_with_disks_of_their_own(tiny: BackendYard) -> None:
    checkpoint = await tiny.checkpoint()
    machines = await asyncio.gather(*(tiny.backend.restore(tiny.spec(), checkpoint) for _ in range(3)))
    for machine in machines:
        assert isinstance(machine, Checkpointing)
        assert [stage.name for stage in machine.stages] == ["prepare", "launch", "load"]
        assert await first_count(machine.vm) >= 3
    files = [machine.vm.vmm.jail.root / UPPER for machine in machines]
    assert len({file.stat().st_ino for file in files}) == 3
    assert len({(machine.vm.vmm.jail.root / ROOT).stat().st_ino for machine in machines}) == 1
    await machines[0].kill()
    await counts_beyond(machines[1].vm, 5)


async def test_less_memory_than_it_had_is_taken_by_the_balloon(tiny: BackendYard) -> None:
    checkpoint = await tiny.checkpoint()
    machine = await tiny.backend.restore(tiny.spec(resources=Resources(memory=12 * MIB)), checkpoint)
    assert (await machine.vm.balloon()).target_mib == MEMORY - 12
    await machine.pause()
    again = await tiny.vms.checkpoint(machine.vm)
    same = await tiny.backend.restore(tiny.spec(), again)
    assert (await same.vm.balloon()).target_mib == MEMORY - 12
    await same.pause()  # the tiny guest has no agent that could be asked
    assert (await same.usage()).memory_limit == 12 * MIB
    more = await tiny.backend.restore(tiny.spec(resources=Resources(memory=MEMORY * MIB)), again)
    assert (await more.vm.balloon()).target_mib == 0


async def test_what_the_checkpoint_is_not_of_is_refused(tiny: BackendYard, tmp_path: Path) -> None:
    checkpoint = await tiny.checkpoint()
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("another image")
    root = RootFilesystem((Tree("/", "@", (other,)),), "other")
    network = Network(enabled=True, netns=Path("/proc/self/ns/net"), address="10.0.0.2")
    for changes, said in (
        ({"root": root}, "taken of another image than 'other'"),
        ({"network": network}, "has no network interface"),
        ({"resources": Resources(memory=(MEMORY + 1) * MIB)}, f"has {MEMORY} MiB of memory, and {MEMORY + 1} were asked for"),
    ):
        with pytest.raises(CapabilityError, match=said):
            await tiny.backend.restore(tiny.spec(**changes), checkpoint)


async def test_a_start_that_takes_too_long_says_where_and_leaves_nothing(tiny: BackendYard) -> None:
    checkpoint = await tiny.checkpoint()
    spec = tiny.spec(timeouts=Timeouts(startup=0.000001))
    with pytest.raises(StartupTimeout, match="MicroVM startup timeout after 1e-06 s in stage 'prepare'"):
        await tiny.backend.restore(spec, checkpoint)


async def test_a_checkpoint_that_is_none(tiny: BackendYard, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="holds no whole Firecracker checkpoint"):
        await tiny.backend.restore(tiny.spec(), tmp_path)


async def test_a_linux_that_does_not_come_up_ends_with_the_time_out(tiny: BackendYard, tmp_path: Path) -> None:
    if native_kvm().native:
        pytest.skip("Linux comes up here (test_linux)")
    require_kernel()
    await asyncio.to_thread(lambda: prepare_guest(tiny.root, shared_store(), transport="vsock", elf=True))
    directory = tmp_path / "linux"
    directory.mkdir()
    spec = MachineSpec("linux", directory, tiny.root, "box", Resources(memory=128 * MIB), timeouts=Timeouts(startup=1.0))
    with pytest.raises(StartupTimeout, match="MicroVM startup timeout after 1 s in stage 'agent'") as caught:
        await tiny.backend.start(spec)
    assert [stage.name for stage in caught.value.timings] == ["prepare", "launch", "boot"]
    assert not (directory / DISK).exists()


async def test_closed_it_starts_nothing(tiny: BackendYard) -> None:
    await tiny.backend.close()
    with pytest.raises(InvalidState, match="this backend is closed"):
        await tiny.backend.start(tiny.spec())


async def test_the_pool_has_processes_ready_and_uses_each_once(vms: VmYard) -> None:
    made: list[Vmm] = []

    async def launch() -> Vmm:
        made.append(await vms.launcher.launch())
        return made[-1]

    ready = pool.Pool(launch, 2, 3)
    first = await ready.take()
    await ready.full()
    assert len(made) == 3
    os.kill(made[-1].monitor.pid, signal.SIGKILL)
    await made[-1].monitor.wait()
    taken = [await ready.take() for _ in range(2)]
    assert len({vmm.jail.id for vmm in (first, *taken)}) == 3
    assert made[2] not in taken
    await ready.close()
    with pytest.raises(InvalidState):
        await ready.take()
    for vmm in (first, *taken):
        await vmm.end()
    assert vms.leftovers() == []


async def test_the_pool_follows_what_is_asked_for_at_a_time(vms: VmYard) -> None:
    made: list[Vmm] = []

    async def launch() -> Vmm:
        made.append(await vms.launcher.launch())
        return made[-1]

    def idle() -> int:
        return sum(vmm.monitor.ended is None for vmm in made) - len(taken)

    taken: list[Vmm] = []
    ready = pool.Pool(launch, 1, 4)
    for asked, kept in ((6, 4), (0, 2), (1, 1), (0, 1)):
        taken += [await ready.take() for _ in range(asked)]
        ready.refill()
        await ready.full()
        assert idle() == kept
    await ready.close()
    assert idle() == 0
    for vmm in taken:
        await vmm.end()
    assert vms.leftovers() == []


async def test_the_pool_tries_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "FIRST_RETRY", 0.001)
    failures = 0
    enough = asyncio.Event()

    async def launch() -> Vmm:
        nonlocal failures
        failures += 1
        if failures == 4:
            enough.set()
        raise InfrastructureError("no such luck.")

    ready = pool.Pool(launch, 1, 1)
    with pytest.raises(InfrastructureError, match="no such luck"):
        await ready.take()
    ready.refill()
    await enough.wait()
    await ready.close()


async def test_an_emulating_kvm_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = KvmFinding(usable=True, native=False, rate=1e6, reason="/dev/kvm emulates its machines.", remedy="Use another.")
    monkeypatch.setattr(probing, "native_kvm", lambda: found)
    with pytest.raises(BackendUnavailable, match="needs a KVM that the processor runs: /dev/kvm emulates its machines"):
        await open_backend(tmp_path)


async def test_the_probe_tries_the_tiny_guest_once(vms: VmYard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_kernel()
    monkeypatch.setenv("AGENTENV_HOME", str(tmp_path / "home"))
    launcher = vms.launcher
    arguments = (launcher.programs, launcher.cgroups, shared_store(), vms.directory)
    monkeypatch.setattr(
        probing, "native_kvm", lambda: KvmFinding(usable=False, native=False, reason="there is no /dev/kvm.", remedy="Buy one.")
    )
    refused = await asyncio.to_thread(probing.probe, *arguments)
    assert (refused.usable, refused.remedy) == (False, "Buy one.")
    monkeypatch.setattr(probing, "native_kvm", lambda: KvmFinding(usable=True, native=True))
    found = await asyncio.to_thread(probing.probe, *arguments)
    assert found.usable, found.reason
    assert found.capabilities.hardware_isolation
    assert found.capabilities.memory_snapshot
    monkeypatch.setattr(probing, "attempt", None)  # it would be an error to try again
    assert (await asyncio.to_thread(probing.probe, *arguments)).usable
    assert vms.leftovers() == []


def test_what_can_be_set() -> None:
    assert Settings.read({}, root=True).jailed
    assert not Settings.read({}, root=False).jailed
    assert not Settings.read({settings.JAIL: "off"}, root=True).jailed
    chosen = Settings.read({settings.CPU_TEMPLATE: "T2", settings.DISK_RATE: "50MB/s"}, root=True)
    assert chosen.cpu_template == "T2"
    assert chosen.limits.disk is not None
    assert chosen.limits.disk.bandwidth is not None
    assert (chosen.limits.disk.bandwidth.size, chosen.limits.disk.bandwidth.refill_time) == (5_000_000, 100)
    assert chosen.limits.network is None


def test_limits_of_the_disk_come_from_the_sandbox() -> None:
    machine = Settings.read({settings.DISK_RATE: "50MB/s", settings.NETWORK_RATE: "1MB/s"}, root=True)
    assert machine.limits_of(Resources()) == machine.limits
    own = machine.limits_of(Resources(disk_read=2_000_000, disk_write=2_000_000, disk_iops=7))
    assert own.disk == RateLimiter(TokenBucket(200_000, 100), TokenBucket(7, 1000))
    assert own.network == machine.limits.network
    with pytest.raises(CapabilityError, match="the same rate"):
        machine.limits_of(Resources(disk_write=2_000_000))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (settings.JAIL, "yes", "Set it to `on` or `off`"),
        (settings.CPU_TEMPLATE, "T9", "T2, T2S"),
        (settings.NETWORK_RATE, "fast", "Write bytes a second"),
    ],
)
def test_what_cannot_be_set(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Settings.read({name: value}, root=True)
