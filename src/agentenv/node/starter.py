"""Starts one machine: directories, network, backend, each on a stack that a failure at any step unwinds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from agentenv.egress.guard import Guard
from agentenv.egress.policy import EgressPolicy
from agentenv.egress.rules import VIRTUAL_NAMESERVER
from agentenv.errors import CapabilityError, InfrastructureError, InvalidState, Stage, StartupTimeout
from agentenv.isolation import open_backend
from agentenv.isolation.contract import Attachable, Backend, Capabilities, Exit, Machine, MachineSpec, Network, Restoring
from agentenv.isolation.vm.disk import clone_disk
from agentenv.node import agent_words
from agentenv.node.blanks import Blanks
from agentenv.node.capacity import disk_full, is_disk_full
from agentenv.node.identity import new_machine_id, resolver_configuration, with_identity, write_identity
from agentenv.node.network import NetworkPool, NetworkSlot
from agentenv.node.origin import DISK, Origin
from agentenv.node.owner import Owner
from agentenv.node.records import SandboxRequest
from agentenv.node.spares import Spares
from agentenv.node.trash import Trash

STARTS_PER_PROCESSOR = 2
"""Machines without a kernel of their own that start at once, for each processor: one waits for the kernel while another computes."""

_LATER = 1.1
"""How much later than a backend's own limit the node's comes: of the two the backend knows what its machine has printed."""


class Backends:
    """The backends that this owner has opened, each on first use."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._open: dict[str, Backend] = {}
        self._able: dict[int, asyncio.Task[Capabilities]] = {}
        self._opening = asyncio.Lock()

    async def get(self, name: str) -> Backend:
        """The backend of that name ("auto" is the strongest usable). Raises `BackendUnavailable`, `NotFound`."""
        if name not in self._open:
            async with self._opening:
                if name not in self._open:
                    backend = await open_backend(name, self._owner.directory)
                    # "auto" and the name it stands for are one backend, not two.
                    self._open[name] = self._open.setdefault(backend.name, backend)
                    if self._open[name] is not backend:
                        await backend.close()
        return self._open[name]

    async def capabilities(self, backend: Backend) -> Capabilities:
        """What a backend that was opened here can do on this machine, asked once."""
        if id(backend) not in self._able:
            self._able[id(backend)] = asyncio.create_task(_ask_capabilities(backend))
        return await asyncio.shield(self._able[id(backend)])

    async def close(self) -> None:
        """Closes each of them; idempotent."""
        backends = {id(backend): backend for backend in self._open.values()}
        self._open.clear()
        if self._able:
            await asyncio.wait(self._able.values())
        for backend in backends.values():
            await backend.close()


async def _ask_capabilities(backend: Backend) -> Capabilities:
    return (await asyncio.to_thread(backend.probe)).capabilities


@dataclass(slots=True)
class Order:
    """One machine to start. `stages` collects how long each stage took; `stage` is the one that runs."""

    id: str
    hostname: str
    request: SandboxRequest
    origin: Origin
    stages: list[Stage] = field(default_factory=list)
    stage: str = "image"
    since: float = field(default_factory=perf_counter)

    def enter(self, stage: str) -> None:
        """The stage before is over, and `stage` begins."""
        now = perf_counter()
        self.stages.append(Stage(self.stage, now - self.since))
        self.stage, self.since = stage, now


@dataclass(frozen=True, slots=True)
class Running:
    """A machine that runs, with all that was acquired for it."""

    machine: Machine
    backend: str
    capabilities: Capabilities
    directory: Path
    stages: tuple[Stage, ...]
    held: AsyncExitStack
    guard: Guard | None = None  # of its network, where it has one

    async def end(self) -> Exit:
        """Kills the machine if it still runs and frees what it held; returns how it ended."""
        try:
            return await self.machine.kill()
        finally:
            await self.held.aclose()


class Starter:
    """Starts machines for one owner."""

    def __init__(self, owner: Owner, backends: Backends, networks: NetworkPool, spares: Spares, blanks: Blanks, trash: Trash) -> None:
        self._owner = owner
        self._backends = backends
        self._networks = networks
        self._spares = spares
        self._blanks = blanks
        self._trash = trash
        # A kernel that boots keeps a processor busy: more at once would only take longer, each of them.
        processors = os.cpu_count() or 1
        self._boots = asyncio.Semaphore(processors)
        self._starts = asyncio.Semaphore(STARTS_PER_PROCESSOR * processors)

    async def start(self, order: Order) -> Running:
        """Raises `StartupTimeout` with the stages so far, `StorageFull`, or what the backend raises; nothing is left then.

        Machines start as many at once as the processors can serve, and first come, first served; only those that go on from memory wait
        for nobody. The wait for a turn does not count as start-up.
        """
        await self._trash.room()
        allowed = order.request.timeouts.startup
        try:
            async with asyncio.timeout(allowed) as limit, AsyncExitStack() as stack:
                return await self._start(order, stack, limit)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise StartupTimeout(kind="Sandbox", stage=order.stage, timeout=allowed, timings=tuple(order.stages)) from error
        except StartupTimeout as error:
            raise StartupTimeout(
                kind=error.kind,
                stage=error.stage,
                timeout=error.timeout,
                timings=(*order.stages, *error.timings),
                last_output=error.last_output,
            ) from error
        except OSError as error:
            raise _named(error, order, self._owner.directory) from error

    async def connect(self, running: Running, hostname: str, policy: EgressPolicy) -> Running:
        """Gives a machine that was started without a network one under `policy`, while it runs; what it is from then on.

        Raises `InvalidState` where its backend can give a network at the start only, `CapabilityError` where nothing here can have one,
        `InfrastructureError`; then it has none, as before.
        """
        machine = running.machine
        if not isinstance(machine, Attachable):
            raise InvalidState(
                f"sandbox {hostname} was made without a network, and {running.backend!r} gives one at the start only.",
                remedy="Create one with `network={'enabled': True, 'allow_internet_access': False}`: its rules can be opened later.",
            )
        async with AsyncExitStack() as undo:
            with _closed_after(machine.network_namespace()) as namespace:
                slot = await self._networks.attach(machine.pid, namespace)
            undo.push_async_callback(self._networks.release, slot)
            guard = await self._networks.guard(slot, hostname, policy)
            await agent_words.tell_nameservers(machine, resolver_configuration(_nameservers(slot)))
            await self._networks.connect(slot)
            running.held.push_async_exit(undo.pop_all())
        return replace(running, guard=guard)

    async def _start(self, order: Order, stack: AsyncExitStack, limit: asyncio.Timeout) -> Running:
        order.enter("directories")
        origin = order.origin
        directory = self._owner.machine_directory(order.id)
        stack.callback(self._trash.discard, directory)
        self._spares.take(directory, tuple(tree.name for tree in origin.image.trees))
        order.enter("network")
        network, guard = await self._network(order, stack)
        machine_id = new_machine_id()
        identity = write_identity(directory, order.hostname, machine_id, network.nameservers)
        order.enter("backend")
        backend = await self._backends.get(order.request.isolation)
        capabilities = await self._backends.capabilities(backend)
        origin.require_room_for(capabilities.disk_image, backend.name)
        if origin.disk is not None:
            order.enter("disk")
            await asyncio.to_thread(clone_disk, origin.disk, directory / "upper" / DISK)
        root = with_identity(origin.image, identity).with_layers(origin.layers.paths)
        if not capabilities.users:
            # There is only root in such a sandbox: an image that names another user is of more use as root than not at all.
            root = replace(root, user="root")
        spec = MachineSpec(
            id=order.id,
            directory=directory,
            root=root,
            hostname=order.hostname,
            resources=order.request.resources,
            network=network,
            env={**root.env, **order.request.env},
            timeouts=order.request.timeouts,
        )
        if capabilities.disk_image and origin.memory is None:
            machine, stages = await self._boot(backend, spec, order, machine_id, limit, stack)
        else:
            machine, stages = await self._bring_up(backend, spec, order, machine_id if capabilities.disk_image else None, limit)
        return Running(machine, backend.name, capabilities, directory, (*order.stages, *stages), stack.pop_all(), guard)

    async def _boot(
        self, backend: Backend, spec: MachineSpec, order: Order, machine_id: str, limit: asyncio.Timeout, stack: AsyncExitStack
    ) -> tuple[Machine, tuple[Stage, ...]]:
        """The running machine of a kernel of its own, and the stages of its start; from a blank like it where that can be."""
        able = self._blanks.serve(backend)
        if able is None or order.origin.disk is not None:
            async with self._turn(order, limit, self._boots):
                machine = await backend.start(spec)
            return machine, machine.stages
        key = await able.blank_key(spec)
        async with self._turn(order, limit, self._blanks.making(key)):
            blank = self._blanks.find(key)
            if blank is None:
                async with self._turn(order, limit, self._boots):
                    return await self._blanks.boot(able, spec, machine_id, key)
        stack.callback(blank.release)
        async with self._turn(order, limit, self._boots):
            if (started := await self._blanks.go_on(able, spec, machine_id, blank)) is not None:
                return started
            machine = await backend.start(spec)
        return machine, machine.stages

    async def _bring_up(
        self, backend: Backend, spec: MachineSpec, order: Order, machine_id: str | None, limit: asyncio.Timeout
    ) -> tuple[Machine, tuple[Stage, ...]]:
        """The running machine and the stages of its start; one from memory has been told that it is another one than before."""
        if order.origin.memory is None:
            async with self._turn(order, limit, self._starts):
                machine = await backend.start(spec)
            return machine, machine.stages
        if not isinstance(backend, Restoring):
            raise CapabilityError(f"the backend {backend.name!r} cannot start a sandbox from memory.", remedy="Give `memory=False`.")
        _leave_to_backend(order, limit)
        machine = await backend.restore(spec, order.origin.memory.paths[0])
        async with AsyncExitStack() as abandon:
            abandon.push_async_callback(machine.kill)
            order.stage, begun = "restored", perf_counter()
            await agent_words.restored(machine, spec.hostname, machine_id, timeout=order.request.timeouts.startup)
            if order.request.env != order.origin.env:
                await agent_words.tell(machine, "configure", env=dict(spec.env))
            abandon.pop_all()
        return machine, (*machine.stages, Stage("restored", perf_counter() - begun))

    @asynccontextmanager
    async def _turn(self, order: Order, limit: asyncio.Timeout, among: asyncio.Semaphore | asyncio.Lock) -> AsyncIterator[None]:
        """Its turn, with which the time that a backend has for the start begins, however long it was waited for."""
        waits = among.locked()
        if waits:
            order.enter("turn")
            limit.reschedule(None)
        async with among:
            if waits:
                order.enter("backend")
            _leave_to_backend(order, limit)
            yield

    async def _network(self, order: Order, stack: AsyncExitStack) -> tuple[Network, Guard | None]:
        wanted = order.request.network
        if not wanted.enabled:
            return Network(), None
        slot = await self._networks.acquire()
        stack.push_async_callback(self._networks.release, slot)
        guard = await self._networks.guard(slot, order.hostname, wanted.policy)
        return Network(True, slot.netns, slot.address, _nameservers(slot)), guard


def _leave_to_backend(order: Order, limit: asyncio.Timeout) -> None:
    limit.reschedule(asyncio.get_running_loop().time() + _LATER * order.request.timeouts.startup)


@contextmanager
def _closed_after(descriptor: int) -> Iterator[int]:
    """Closes it after the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _nameservers(slot: NetworkSlot) -> tuple[str, ...]:
    """Whom a sandbox asks: the host's, or nobody's address, where a proxy answers if there is one."""
    return slot.nameservers or (VIRTUAL_NAMESERVER,)


def _named(error: OSError, order: Order, home: Path) -> InfrastructureError:
    """A fault of the file system, as an error that says what could not be done and where."""
    if is_disk_full(error):
        return disk_full(order.id, home)
    return InfrastructureError(f"sandbox {order.id} could not start in stage '{order.stage}': {error}.", remedy="Run `agentenv doctor`.")
