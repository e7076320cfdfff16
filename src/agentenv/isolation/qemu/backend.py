"""The QEMU backend: starts and restores sandboxes, each in a machine of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.attempt import Attempt
from agentenv.isolation.contract import MachineSpec, Probe, Resources
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.qemu import checkpoint as checkpoints
from agentenv.isolation.qemu.command import FIRST_PORTS, Boot, Hardware, memory, processors
from agentenv.isolation.qemu.launcher import Launcher, Order, Vmm, Written
from agentenv.isolation.qemu.machine import ANSWER_SECONDS, QemuMachine
from agentenv.isolation.qemu.probing import Qemu, probe
from agentenv.isolation.vm import GuestConfig, GuestFiles, configure_guest, make_upper, memory_layers, prepare_guest, root_image
from agentenv.isolation.vm.blank import blank_key
from agentenv.isolation.vm.disk import DISK
from agentenv.isolation.vm.finishing import finished
from agentenv.isolation.vm.network import GuestLink, connect_guest
from agentenv.isolation.vm.process import Warden


class QemuBackend:
    """Starts sandboxes for one owner process. Made by `open`."""

    name = "qemu"

    def __init__(self, qemu: Qemu, store: ArtefactStore, launcher: Launcher) -> None:
        self._qemu = qemu
        self._store = store
        self._launcher = launcher
        self._machines: set[QemuMachine] = set()
        self._closed = False

    @classmethod
    async def open(cls, owner_dir: Path) -> QemuBackend:
        """Raises `BackendUnavailable` where there is no QEMU."""
        store = ArtefactStore.open()
        qemu = await asyncio.to_thread(Qemu.find, store)
        return cls(qemu, store, Launcher(qemu.program, Warden.open(), CgroupTree.discover(), owner_dir.name, qemu.disk_rate))

    def probe(self) -> Probe:
        """What this machine allows. Nothing is started: QEMU says its version, and a machine of one page tells what runs the guests."""
        return probe(self._qemu, self._store, self._launcher.cgroups)

    async def start(self, spec: MachineSpec) -> QemuMachine:
        """Starts a sandbox; on any failure nothing of it is left.

        Raises `StartupTimeout`, `CapabilityError` for an image that no machine can have, `BackendUnavailable`, `InfrastructureError`.
        """
        async with self._attempt(spec) as (attempt, held):
            disk = spec.directory / DISK
            if not await asyncio.to_thread(disk.exists):
                held.callback(disk.unlink, missing_ok=True)
            guest = await finished(lambda: self._prepare(spec))
            hardware, link = self._hardware(spec), await _connect(spec)
            attempt.enter("launch")
            vmm = await self._launch(Order(spec, hardware, guest.root.path, _boot(spec, guest, hardware, link), link), attempt, held)
            attempt.enter("boot")
            connection = await vmm.agent_answers()
            attempt.enter("agent")
            await finished(lambda: configure_guest(connection, spec, timeout=ANSWER_SECONDS), vmm.monitor.kill)
            return self._machine(vmm, spec, attempt, held, None)

    async def restore(self, spec: MachineSpec, checkpoint: Path) -> QemuMachine:
        """Starts a sandbox that goes on where the checkpoint was taken; on any failure nothing of it is left.

        Raises `CapabilityError` for a checkpoint of another QEMU, processor, image or network, `StartupTimeout`, `InfrastructureError`.
        """
        async with self._attempt(spec) as (attempt, held):
            facts, root = await finished(lambda: self._read(spec, checkpoint))
            whole = await finished(lambda: memory_layers.whole(checkpoint, facts.hardware.memory))
            attempt.enter("launch")
            written = Written(whole, checkpoint / checkpoints.DEVICES, facts.free)
            vmm = await self._launch(Order(spec, facts.hardware, root, written, await _connect(spec)), attempt, held)
            attempt.enter("agent")
            connection = await vmm.agent_answers()
            held.callback(connection.close)
            if spec.resources.memory is not None and memory(spec.resources) < facts.hardware.memory:
                await vmm.qmp.set_memory(memory(spec.resources))
            return self._machine(vmm, spec, attempt, held, connection)

    async def blank_key(self, spec: MachineSpec) -> str:
        """See `agentenv.isolation.contract.Blanking`."""
        made_by = (self.name, self._qemu.version, self._qemu.accelerator, str(checkpoints.FORMAT))
        return await finished(lambda: blank_key(spec, self._guest(spec), *made_by))

    async def close(self) -> None:
        """Ends every sandbox and frees all. Idempotent."""
        self._closed = True
        await asyncio.gather(*(machine.kill() for machine in list(self._machines)))
        self._launcher.warden.close()

    @asynccontextmanager
    async def _attempt(self, spec: MachineSpec) -> AsyncIterator[tuple[Attempt, AsyncExitStack]]:
        """What is put on the stack is undone unless the start has come to its machine."""
        if self._closed:
            raise InvalidState("this backend is closed.")
        attempt = Attempt("MicroVM")
        async with AsyncExitStack() as held, attempt.within(spec.timeouts.startup):
            try:
                yield attempt, held
            except OSError as error:
                raise InfrastructureError(f"sandbox {spec.id} could not be started: {error}.") from error

    async def _launch(self, order: Order, attempt: Attempt, held: AsyncExitStack) -> Vmm:
        vmm = await self._launcher.launch(order)
        held.push_async_callback(vmm.end)
        attempt.printed = lambda: vmm.output
        return vmm

    def _guest(self, spec: MachineSpec) -> GuestFiles:
        return prepare_guest(spec.root, self._store, transport="serial", elf=False)

    def _prepare(self, spec: MachineSpec) -> GuestFiles:
        guest = self._guest(spec)
        disk = spec.directory / DISK
        if not disk.exists():
            disk.parent.mkdir(exist_ok=True)
            make_upper(disk, spec.resources.storage, self._store)
        return guest

    def _hardware(self, spec: MachineSpec) -> Hardware:
        return Hardware(
            accelerator=self._qemu.accelerator,
            cpu=self._qemu.cpu,
            processors=processors(spec.resources),
            memory=memory(spec.resources),
            disk=(spec.directory / DISK).stat().st_size,
            ports=FIRST_PORTS,
            network=spec.network.enabled,
        )

    def _read(self, spec: MachineSpec, checkpoint: Path) -> tuple[checkpoints.Facts, Path]:
        """Raises `CapabilityError` where the sandbox is not to be what the checkpoint was taken of, `InfrastructureError` for damage."""
        facts = checkpoints.read_facts(checkpoint, qemu=self._qemu.version, accelerator=self._qemu.accelerator)
        root = root_image(spec.root, self._store.directory / "roots").path
        checkpoints.require_root(checkpoint, facts, root)
        checkpoints.require_disk(facts, spec.directory / DISK)
        if facts.hardware.network != spec.network.enabled:
            has = "has a network interface" if facts.hardware.network else "has no network interface"
            raise CapabilityError(f"the machine in the checkpoint {has}.", remedy="Restore it with the `network` that it had.")
        if spec.resources.memory is not None and memory(spec.resources) > facts.hardware.memory:
            had, wanted = facts.hardware.memory >> 20, memory(spec.resources) >> 20
            raise CapabilityError(
                f"the machine in the checkpoint has {had} MiB of memory, and {wanted} were asked for.",
                remedy="Restore it with at most what it had.",
            )
        return facts, root

    def _machine(self, vmm: Vmm, spec: MachineSpec, attempt: Attempt, held: AsyncExitStack, first: socket.socket | None) -> QemuMachine:
        vmm.cgroup.apply(Resources(cpu=spec.resources.cpu, pids=None))
        resources = replace(spec.resources, memory=spec.resources.memory or vmm.hardware.memory)
        machine = QemuMachine(
            vmm,
            replace(spec, resources=resources),
            attempt.finish(),
            qemu=self._qemu.version,
            first=first,
            on_end=self._machines.discard,
        )
        self._machines.add(machine)
        held.pop_all()
        return machine


async def _connect(spec: MachineSpec) -> GuestLink | None:
    return await finished(lambda: connect_guest(spec.network)) if spec.network.enabled else None


def _boot(spec: MachineSpec, guest: GuestFiles, hardware: Hardware, link: GuestLink | None) -> Boot:
    network = None if link is None else link.guest
    config = GuestConfig(hostname=spec.hostname, transport="serial", network=network, pids=spec.resources.pids)
    return Boot(guest.kernel, guest.initrd, config.command_line(hardware.platform))
