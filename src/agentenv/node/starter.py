"""Starts one machine: directories, network, backend, each on a stack that a failure at any step unwinds."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from agentenv.errors import InfrastructureError, Stage, StartupTimeout
from agentenv.isolation import open_backend
from agentenv.isolation.contract import Backend, Exit, Machine, MachineSpec, Network, RootFilesystem
from agentenv.node.capacity import disk_full, is_disk_full
from agentenv.node.identity import with_identity, write_identity
from agentenv.node.network import NetworkPool
from agentenv.node.owner import Owner
from agentenv.node.records import SandboxRequest
from agentenv.node.spares import Spares
from agentenv.node.trash import Trash


class Backends:
    """The backends that this owner has opened, each on first use."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._open: dict[str, Backend] = {}
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

    async def close(self) -> None:
        """Closes each of them; idempotent."""
        backends = {id(backend): backend for backend in self._open.values()}
        self._open.clear()
        for backend in backends.values():
            await backend.close()


@dataclass(slots=True)
class Order:
    """One machine to start. `stages` collects how long each stage took; `stage` is the one that runs."""

    id: str
    hostname: str
    request: SandboxRequest
    image: RootFilesystem
    layers: tuple[Path, ...] = ()
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
    directory: Path
    stages: tuple[Stage, ...]
    held: AsyncExitStack

    async def end(self) -> Exit:
        """Kills the machine if it still runs and frees what it held; returns how it ended."""
        try:
            return await self.machine.kill()
        finally:
            await self.held.aclose()


class Starter:
    """Starts machines for one owner."""

    def __init__(self, owner: Owner, backends: Backends, networks: NetworkPool, spares: Spares, trash: Trash) -> None:
        self._owner = owner
        self._backends = backends
        self._networks = networks
        self._spares = spares
        self._trash = trash

    async def start(self, order: Order) -> Running:
        """Raises `StartupTimeout` with the stages so far, `StorageFull`, or what the backend raises; nothing is left then."""
        allowed = order.request.timeouts.startup
        try:
            async with asyncio.timeout(allowed) as limit, AsyncExitStack() as stack:
                return await self._start(order, stack)
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

    async def _start(self, order: Order, stack: AsyncExitStack) -> Running:
        order.enter("directories")
        directory = self._owner.machine_directory(order.id)
        stack.callback(self._trash.discard, directory)
        self._spares.take(directory, tuple(tree.name for tree in order.image.trees))
        order.enter("network")
        network = await self._network(order.request, stack)
        identity = write_identity(directory, order.hostname, network.nameservers)
        order.enter("backend")
        backend = await self._backends.get(order.request.isolation)
        root = with_identity(order.image, identity).with_layers(order.layers)
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
        machine = await backend.start(spec)
        return Running(machine, backend.name, directory, (*order.stages, *machine.stages), stack.pop_all())

    async def _network(self, request: SandboxRequest, stack: AsyncExitStack) -> Network:
        if not request.network.enabled:
            return Network()
        slot = await self._networks.acquire()
        stack.push_async_callback(self._networks.release, slot)
        return Network(True, slot.netns, slot.address, slot.nameservers)


def _named(error: OSError, order: Order, home: Path) -> InfrastructureError:
    """A fault of the file system, as an error that says what could not be done and where."""
    if is_disk_full(error):
        return disk_full(order.id, home)
    return InfrastructureError(f"sandbox {order.id} could not start in stage '{order.stage}': {error}.", remedy="Run `agentenv doctor`.")
