"""The Firecracker backend: starts and restores sandboxes, each in a virtual machine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.attempt import Attempt
from agentenv.isolation.contract import MachineSpec, Network, Probe, Resources
from agentenv.isolation.firecracker.jail import ROOT, UPPER, VSOCK
from agentenv.isolation.firecracker.launcher import Launcher, Vmm
from agentenv.isolation.firecracker.machine import ANSWER_SECONDS, FirecrackerMachine, cores_of, memory_of
from agentenv.isolation.firecracker.pool import Pool
from agentenv.isolation.firecracker.probing import probe, require_native_kvm
from agentenv.isolation.firecracker.release import Programs
from agentenv.isolation.firecracker.settings import Settings
from agentenv.isolation.firecracker.snapshot import FORMAT, Facts, read_facts
from agentenv.isolation.firecracker.vm import Boot, Vm
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.vm import GuestConfig, GuestFiles, Platform, configure_guest, dial_vsock, make_upper, prepare_guest, root_image
from agentenv.isolation.vm.blank import blank_key
from agentenv.isolation.vm.disk import DISK
from agentenv.isolation.vm.finishing import finished

_LEAST_READY, _MOST_READY = 2, 16
_LOOK_AGAIN = 0.002


class FirecrackerBackend:
    """Starts sandboxes for one owner process. Made by `open`."""

    name = "firecracker"

    def __init__(self, launcher: Launcher, store: ArtefactStore, settings: Settings) -> None:
        self._launcher = launcher
        self._store = store
        self._settings = settings
        self._release = launcher.programs.release
        self._pool = Pool(launcher.launch, _LEAST_READY, _MOST_READY)
        self._machines: set[FirecrackerMachine] = set()
        self._underway = 0
        self._closed = False

    @classmethod
    async def open(cls, owner_dir: Path) -> FirecrackerBackend:
        """Raises `BackendUnavailable` without a KVM in which Linux comes up, or without Firecracker and its jailer."""
        await asyncio.to_thread(require_native_kvm)
        settings, store = Settings.read(), ArtefactStore.open()
        programs = await asyncio.to_thread(lambda: Programs.find(store, jailed=settings.jailed))
        return cls(await Launcher.open(programs, CgroupTree.discover(), owner_dir), store, settings)

    def probe(self) -> Probe:
        """What this machine allows; a tiny guest is started once for each version of Firecracker and of the kernel."""
        return probe(self._launcher.programs, self._launcher.cgroups, self._store, self._launcher.directory.parent)

    async def start(self, spec: MachineSpec) -> FirecrackerMachine:
        """Starts a sandbox; on any failure nothing of it is left. Raises `StartupTimeout`, `BackendUnavailable`, `InfrastructureError`."""
        async with self._attempt(spec) as (attempt, held):
            disk = spec.directory / DISK
            if not await asyncio.to_thread(disk.exists):
                held.callback(disk.unlink, missing_ok=True)
            guest = await finished(lambda: self._prepare(spec))
            attempt.enter("launch")
            vmm = await self._process(spec.network, held)
            attempt.printed = lambda: vmm.monitor.output
            attempt.enter("boot")
            vm = await Vm.boot(vmm, self._release, self._boot(spec, guest, vmm))
            attempt.enter("agent")
            await _agent_listens(vm)
            socket = vmm.jail.root / VSOCK
            await finished(lambda: configure_guest(dial_vsock(socket, ANSWER_SECONDS), spec, timeout=ANSWER_SECONDS), vmm.monitor.kill)
            return self._machine(vm, spec, attempt, held)

    async def restore(self, spec: MachineSpec, checkpoint: Path) -> FirecrackerMachine:
        """Starts a sandbox that goes on where the checkpoint was taken; on any failure nothing of it is left.

        Raises `CapabilityError` for a checkpoint of another image, processor or Firecracker, `StartupTimeout`, `InfrastructureError`.
        """
        async with self._attempt(spec) as (attempt, held):
            facts = await asyncio.to_thread(read_facts, checkpoint, self._release)
            drives = await finished(lambda: self._drives(spec, facts))
            attempt.enter("launch")
            vmm = await self._process(spec.network, held)
            attempt.printed = lambda: vmm.monitor.output
            attempt.enter("load")
            vm = await Vm.load(vmm, self._release, checkpoint, facts, drives)
            if spec.resources.memory is not None and (taken := vm.memory_mib - memory_of(spec.resources)) != facts.balloon:
                await vm.resize_balloon(taken)
            if spec.resources.limits_disks:
                await vm.limit(self._settings.limits_of(spec.resources))
            return self._machine(vm, spec, attempt, held)

    async def blank_key(self, spec: MachineSpec) -> str:
        """See `agentenv.isolation.contract.Blanking`."""
        made_by = (self.name, str(self._release), str(FORMAT), repr(self._settings))
        return await finished(lambda: blank_key(spec, self._guest(spec), *made_by))

    async def warm(self) -> None:
        """Returns when as many processes are ready as were taken at a time before."""
        await self._pool.full()

    async def close(self) -> None:
        """Ends every sandbox and frees all. Idempotent."""
        self._closed = True
        await self._pool.close()
        try:
            await asyncio.gather(*(machine.kill() for machine in list(self._machines)))
        finally:
            await self._launcher.close()

    @asynccontextmanager
    async def _attempt(self, spec: MachineSpec) -> AsyncIterator[tuple[Attempt, AsyncExitStack]]:
        """What is put on the stack is undone unless the start has come to its machine."""
        if self._closed:
            raise InvalidState("this backend is closed.")
        attempt = Attempt("MicroVM")
        self._underway += 1
        try:
            async with AsyncExitStack() as held, attempt.within(spec.timeouts.startup):
                yield attempt, held
        except OSError as error:
            raise InfrastructureError(f"sandbox {spec.id} could not be started: {error}.") from error
        finally:
            self._underway -= 1
            if not self._underway:
                self._pool.refill()

    async def _process(self, network: Network, held: AsyncExitStack) -> Vmm:
        # A process is born into its network, so that one with a slot cannot be there beforehand.
        vmm = await (self._launcher.launch(network) if network.enabled else self._pool.take())
        held.push_async_callback(vmm.end)
        return vmm

    def _guest(self, spec: MachineSpec) -> GuestFiles:
        return prepare_guest(spec.root, self._store, transport="vsock", elf=True)

    def _prepare(self, spec: MachineSpec) -> GuestFiles:
        guest = self._guest(spec)
        disk = spec.directory / DISK
        if not disk.exists():
            disk.parent.mkdir(exist_ok=True)
            make_upper(disk, spec.resources.storage, self._store)
        return guest

    def _boot(self, spec: MachineSpec, guest: GuestFiles, vmm: Vmm) -> Boot:
        config = GuestConfig(
            hostname=spec.hostname,
            transport="vsock",
            network=vmm.link.guest if vmm.link else None,
            pids=spec.resources.pids,
        )
        return Boot(
            kernel=guest.kernel,
            command_line=config.command_line(Platform.FIRECRACKER),
            memory=memory_of(spec.resources),
            vcpus=cores_of(spec.resources),
            initrd=guest.initrd,
            drives={ROOT: guest.root.path, UPPER: spec.directory / DISK},
            image=guest.root.path.name,
            cpu_template=self._settings.cpu_template,
            limits=self._settings.limits_of(spec.resources),
        )

    def _drives(self, spec: MachineSpec, facts: Facts) -> dict[str, Path]:
        """Raises `CapabilityError` where the sandbox is not to be what the checkpoint was taken of."""
        image = root_image(spec.root, self._store.directory / "roots").path
        if facts.image != image.name:
            raise CapabilityError(
                f"the checkpoint was taken of another image than {spec.root.image!r}, as that is now.",
                remedy="Take it anew, or start afresh.",
            )
        if facts.network != spec.network.enabled:
            has = "has a network interface" if facts.network else "has no network interface"
            raise CapabilityError(f"the machine in the checkpoint {has}.", remedy="Restore it with the `network` that it had.")
        if spec.resources.memory is not None and memory_of(spec.resources) > facts.memory >> 20:
            raise CapabilityError(
                f"the machine in the checkpoint has {facts.memory >> 20} MiB of memory, and {memory_of(spec.resources)} were asked for.",
                remedy="Restore it with at most what it had.",
            )
        return {ROOT: image, UPPER: spec.directory / DISK}

    def _machine(self, vm: Vm, spec: MachineSpec, attempt: Attempt, held: AsyncExitStack) -> FirecrackerMachine:
        vm.vmm.cgroup.apply(Resources(cpu=spec.resources.cpu, pids=None))
        left = vm.memory_mib - vm.facts.balloon << 20
        resources = replace(spec.resources, memory=spec.resources.memory or left)
        machine = FirecrackerMachine(
            vm,
            replace(spec, resources=resources),
            attempt.finish(),
            cores=vm.facts.cores,
            settings=self._settings,
            on_end=self._machines.discard,
        )
        self._machines.add(machine)
        held.pop_all()
        return machine


async def _agent_listens(vm: Vm) -> None:
    """Returns when the guest's agent can be reached. Nobody tells when it begins to listen, so it is asked again."""
    socket = vm.vmm.jail.root / VSOCK
    while True:
        try:
            connection = await finished(lambda: dial_vsock(socket, ANSWER_SECONDS), vm.vmm.monitor.kill)
        except OSError as error:
            if vm.vmm.monitor.ended is not None:
                raise InfrastructureError(
                    f"the machine's Firecracker {vm.vmm.monitor.ended} before its agent answered; the console had shown: "
                    f"{vm.vmm.monitor.output.strip()[-800:] or 'nothing'}",
                    remedy="Is the kernel one for Firecracker, with virtio over MMIO and vsock?",
                ) from error
            await asyncio.sleep(_LOOK_AGAIN)
        else:
            connection.close()
            return
