"""One virtual machine in a Firecracker process, whatever runs in it: booted or restored, paused, written down, resized, ended."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from agentenv.errors import AgentEnvError, InfrastructureError
from agentenv.isolation.firecracker import jail as names
from agentenv.isolation.firecracker.api import (
    UNLIMITED,
    Action,
    Api,
    Balloon,
    BalloonStatistics,
    BalloonUpdate,
    BootSource,
    Drive,
    DriveUpdate,
    Entropy,
    InterfaceUpdate,
    MachineConfig,
    MemoryBackend,
    NetworkInterface,
    RateLimiter,
    SnapshotCreate,
    SnapshotLoad,
    State,
    Vsock,
)
from agentenv.isolation.firecracker.launcher import Vmm
from agentenv.isolation.firecracker.metrics import Meter, Metrics
from agentenv.isolation.firecracker.release import Release
from agentenv.isolation.firecracker.snapshot import FORMAT, Facts, host_cpu, peek, write_facts
from agentenv.isolation.vm import memory_layers as memory
from agentenv.isolation.vm.finishing import finished

INTERFACE = "eth0"
_GUEST_CID = 3  # each machine is alone on its vsock; 0 to 2 have a meaning (vsock(7))
_STATISTICS_SECONDS = 5
_COPY_SECONDS = 600.0  # for an answer that comes when all memory has been written or read
_BOOT_SECONDS = 60.0
_BLANK = ""  # the epoch of a machine that has been booted and not been written down since: all else is zero


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of disks and network a machine may use in a time; None is unlimited."""

    disk: RateLimiter | None = None
    network: RateLimiter | None = None


@dataclass(frozen=True, slots=True)
class Boot:
    """What is booted: an ELF `kernel`, `drives` by their names in the jail, `memory` in MiB.

    Of the drives, `upper.img` is written, the others are only read. `image` is what the checkpoints note of the read-only ones.
    """

    kernel: Path
    command_line: str
    memory: int
    vcpus: int = 1
    initrd: Path | None = None
    drives: Mapping[str, Path] = field(default_factory=dict)
    image: str | None = None
    cpu_template: str | None = None
    limits: Limits = Limits()


class Vm:
    """A machine. Made by `boot` or `load`, which take over nothing of the `Vmm` when they fail: the caller ends it."""

    def __init__(self, vmm: Vmm, release: Release, facts: Facts) -> None:
        """`facts` is what a checkpoint of it will say; its epoch is the moment that the monitor knows the changes since."""
        self.vmm = vmm
        self.facts = facts
        self._release = release
        self._epoch: str | None = facts.epoch
        self._meter = Meter(vmm.metrics)

    @classmethod
    async def boot(cls, vmm: Vmm, release: Release, boot: Boot) -> Vm:
        """Returns when the guest's first instruction can run. Raises `InfrastructureError` for a kernel that is none, say."""
        await _undertake(vmm, lambda: _boot(vmm, release, boot))
        facts = Facts(
            format=FORMAT,
            firecracker=str(release),
            snapshot_format=release.snapshot_format,
            cpu=host_cpu(),
            cpu_template=boot.cpu_template,
            memory=boot.memory << 20,
            cores=boot.vcpus,
            balloon=0,
            epoch=_BLANK,
            drives=tuple(boot.drives),
            image=boot.image,
            network=vmm.link is not None,
        )
        return cls(vmm, release, facts)

    @classmethod
    async def load(
        cls, vmm: Vmm, release: Release, checkpoint: Path, facts: Facts, drives: Mapping[str, Path], *, resume: bool = True
    ) -> Vm:
        """A machine that goes on where the checkpoint with these `facts` was taken, with `drives` of its own.

        Its memory is mapped privately. Raises `InfrastructureError` for files that are missing or damaged.
        """
        await _undertake(vmm, lambda: _load(vmm, release, checkpoint, facts, drives, resume))
        here = replace(facts, firecracker=str(release), snapshot_format=release.snapshot_format, cpu=host_cpu())
        return cls(vmm, release, here)

    @property
    def memory_mib(self) -> int:
        """Of the whole machine, its balloon included."""
        return self.facts.memory >> 20

    async def pause(self) -> None:
        """Stops its processors. Raises `InfrastructureError`."""
        await self._ask(lambda api: api.patch("/vm", State("Paused")))

    async def resume(self) -> None:
        """Lets them go on. Raises `InfrastructureError`."""
        await self._ask(lambda api: api.patch("/vm", State("Resumed")))

    async def checkpoint(self, directory: Path, parent: Path | None = None) -> None:
        """Writes memory and devices of the paused machine into the empty `directory`.

        Only what has changed is written where `parent` is the checkpoint that was taken of it last, or that it was restored from; likewise
        since its boot, whatever the parent, the first time. Raises `InfrastructureError` (a full disk); `directory` is empty then, and the
        machine goes on when it is resumed.
        """
        kind, base = await asyncio.to_thread(self._plan, parent)
        # Until it has succeeded, nobody knows since when the monitor knows the changes.
        epoch, self._epoch = secrets.token_hex(8), None
        try:
            await finished(lambda: self._write(directory, kind, base, epoch))
        except asyncio.CancelledError:
            _empty(directory)
            raise
        self._epoch = epoch

    async def resize_balloon(self, mib: int) -> None:
        """Has the guest give up `mib` of its memory; its kernel takes its time. Raises `InfrastructureError` before it has a driver."""
        await self._ask(lambda api: api.patch("/balloon", BalloonUpdate(mib)))
        self.facts = replace(self.facts, balloon=mib)

    async def balloon(self) -> BalloonStatistics:
        """The balloon's size, and what the guest tells of its memory. Raises `InfrastructureError`."""
        return await asyncio.to_thread(self.vmm.api.get, "/balloon/statistics", BalloonStatistics)

    async def limit(self, limits: Limits) -> None:
        """Gives its disks and its network new limits. Raises `InfrastructureError`."""

        def tell(api: Api) -> None:
            for name in self.facts.drives:
                drive = _drive_id(name)
                api.patch(f"/drives/{drive}", DriveUpdate(drive, _update(limits.disk)))
            if self.facts.network:
                limiter = _update(limits.network)
                api.patch(f"/network-interfaces/{INTERFACE}", InterfaceUpdate(INTERFACE, limiter, limiter))

        await self._ask(tell)

    async def metrics(self) -> Metrics:
        """What Firecracker has counted since the start. Raises `InfrastructureError`."""
        self._meter.read()  # a full pipe would take no more
        await self._ask(lambda api: api.put("/actions", Action("FlushMetrics")))
        return self._meter.read()

    async def kill(self) -> None:
        """Ends it whatever it does, and frees all. Idempotent."""
        await self.vmm.end()

    async def _ask(self, question: Callable[[Api], None]) -> None:
        await finished(lambda: question(self.vmm.api))

    def _plan(self, parent: Path | None) -> tuple[Literal["Full", "Diff"], Path | None]:
        """What is written, and the checkpoint on which it builds: `parent`, if that is the one since which the changes are counted."""
        if self._epoch is None or not self._release.writes_whole_differences(self.memory_mib):
            return "Full", None
        if self._epoch == _BLANK:
            return "Diff", None
        try:
            if parent is not None and peek(parent).epoch == self._epoch and len(memory.layers(parent)) < memory.MOST_LAYERS:
                return "Diff", parent
        except (OSError, AgentEnvError):
            pass  # it is no whole checkpoint any more, and is not needed
        return "Full", None

    def _write(self, directory: Path, kind: Literal["Full", "Diff"], base: Path | None, epoch: str) -> None:
        jail = self.vmm.jail
        try:
            target = directory / memory.WHOLE if base is None else memory.build_on(base, directory)
            order = SnapshotCreate(names.STATE, names.MEMORY, kind)
            self.vmm.api.put("/snapshot/create", order, timeout=_COPY_SECONDS)
            jail.take(names.STATE, directory / names.STATE)
            jail.take(names.MEMORY, target)
            write_facts(directory, replace(self.facts, epoch=epoch))
        except (OSError, InfrastructureError) as error:
            jail.drop(names.STATE, names.MEMORY)
            _empty(directory)
            if isinstance(error, InfrastructureError):
                raise
            raise InfrastructureError(f"the checkpoint {directory} could not be written: {error.strerror}.") from error


def _empty(directory: Path) -> None:
    for left in directory.iterdir():
        left.unlink()


def _update(limiter: RateLimiter | None) -> RateLimiter:
    wanted = limiter or RateLimiter()
    return RateLimiter(wanted.bandwidth or UNLIMITED, wanted.ops or UNLIMITED)


def _drive_id(name: str) -> str:
    return name.partition(".")[0]


async def _undertake(vmm: Vmm, work: Callable[[], None]) -> None:
    try:
        await finished(work, vmm.monitor.kill)
    except OSError as error:
        raise InfrastructureError(
            f"a machine's files cannot be put into its jail: {error.strerror} ({error.filename2 or error.filename})."
        ) from error


def _boot(vmm: Vmm, release: Release, boot: Boot) -> None:
    jail, api = vmm.jail, vmm.api
    jail.bring(boot.kernel, names.KERNEL)
    if boot.initrd is not None:
        jail.bring(boot.initrd, names.INITRD)
    api.put("/machine-config", MachineConfig(boot.vcpus, boot.memory, track_dirty_pages=True, cpu_template=boot.cpu_template))
    api.put("/boot-source", BootSource(names.KERNEL, boot.command_line, names.INITRD if boot.initrd else None))
    _add_devices(vmm, release, boot)
    api.put("/actions", Action("InstanceStart"), timeout=_BOOT_SECONDS)
    jail.drop(names.KERNEL, names.INITRD)


def _add_devices(vmm: Vmm, release: Release, boot: Boot) -> None:
    api, disk, network = vmm.api, boot.limits.disk, boot.limits.network
    for name, source in boot.drives.items():
        _attach(vmm, name, source)
        drive = Drive(_drive_id(name), name, is_root_device=False, is_read_only=name != names.UPPER, rate_limiter=disk)
        api.put(f"/drives/{drive.drive_id}", drive)
    if vmm.link is not None:
        interface = NetworkInterface(INTERFACE, vmm.link.tap, vmm.link.mac, rx_rate_limiter=network, tx_rate_limiter=network)
        api.put(f"/network-interfaces/{INTERFACE}", interface)
    reporting = release.reports_free_pages
    # What was taken stays taken when the guest runs out of memory: a limit is one.
    api.put("/balloon", Balloon(0, deflate_on_oom=False, stats_polling_interval_s=_STATISTICS_SECONDS, free_page_reporting=reporting))
    api.put("/vsock", Vsock(_GUEST_CID, names.VSOCK))
    api.put("/entropy", Entropy())


def _load(vmm: Vmm, release: Release, checkpoint: Path, facts: Facts, drives: Mapping[str, Path], resume: bool) -> None:
    jail = vmm.jail
    jail.bring(memory.whole(checkpoint, facts.memory), names.MEMORY)
    jail.bring(checkpoint / names.STATE, names.STATE)
    for name in facts.drives:
        _attach(vmm, name, drives[name])
    new = release.tracks_by_new_name
    backend = MemoryBackend(names.MEMORY, "File")
    order = SnapshotLoad(names.STATE, backend, resume_vm=resume, track_dirty_pages=new, enable_diff_snapshots=not new)
    vmm.api.put("/snapshot/load", order, timeout=_COPY_SECONDS)
    # The machine keeps its mapping; a later snapshot must not find the file that others map as well.
    jail.drop(names.STATE, names.MEMORY)


def _attach(vmm: Vmm, name: str, source: Path) -> None:
    if name == names.UPPER:
        vmm.jail.give(source, name)
    else:
        vmm.jail.bring(source, name)
