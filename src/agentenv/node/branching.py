"""Snapshot, rollback and fork of a live sandbox: what it is becomes a layer, and perhaps a memory, and machines start from those.

What is needed is taken while the sandbox stands still, and it goes on as soon as that is copied. Everything that can be done later
(finding equal content, making it durable) is done after that.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from agentenv.egress.policy import EgressPolicy
from agentenv.errors import AgentEnvError, CapabilityError, InvalidState, NotFound
from agentenv.images.fingerprint import fingerprint
from agentenv.isolation.contract import Resources, RootFilesystem
from agentenv.node.keeping import Keeping
from agentenv.node.layers import LayerStore
from agentenv.node.origin import Origin
from agentenv.node.records import SandboxRequest
from agentenv.node.sandbox import NodeSandbox
from agentenv.node.snapshots import Snapshot, SnapshotTree, check_name
from agentenv.node.starter import Order, Running, Starter
from agentenv.node.taking import Taken, Taking, takes_memory
from agentenv.node.waiting import uninterrupted

CHILDREN_AT_ONCE = 4
"""Children of one fork that start at the same time: starting is bound by the kernel, so more would only queue there."""


@dataclass(frozen=True, slots=True)
class Branching:
    """Does it for all sandboxes of a node. `image` resolves a reference, `launch` starts a sandbox of its own."""

    tree: SnapshotTree
    layers: LayerStore
    memories: LayerStore
    taking: Taking
    keeping: Keeping
    starter: Starter
    image: Callable[[str], Awaitable[RootFilesystem]]
    launch: Callable[[SandboxRequest, Origin], Awaitable[NodeSandbox]]

    async def begin(self, request: SandboxRequest) -> tuple[SandboxRequest, Origin]:
        """What a sandbox that is to start from `request.snapshot` starts from, in use from now on; and the request with what follows of it.

        Raises as `origin`, and `CapabilityError` where the memory that was asked for is not there, or belongs to another backend.
        """
        snapshot = self.tree.find(request.snapshot or "")
        memory = goes_on(snapshot, request.isolation, request.memory)
        _check_disk_size(snapshot, request.resources)
        origin = await self.origin(snapshot, memory=memory)
        isolation = snapshot.backend if memory or (snapshot.disk and request.isolation == "auto") else request.isolation
        request = replace(request, image=origin.image.image, isolation=isolation or request.isolation)
        if memory:
            limits = _completed(request.resources, snapshot.resources)
            request = replace(request, resources=limits, env={**snapshot.env, **request.env})
        elif snapshot.disk:
            request = replace(request, resources=replace(request.resources, storage=snapshot.resources.storage))
        return request, origin

    async def origin(self, snapshot: Snapshot, *, memory: bool) -> Origin:
        """What a machine that starts from this snapshot starts from; in use from now on.

        Raises `NotFound`, or `CapabilityError` when the image is not the one that the snapshot was made on any more.
        """
        try:
            image = await self.image(snapshot.image)
        except NotFound as error:
            raise NotFound(f"snapshot {snapshot.label} cannot be used: {error.message}", remedy=error.remedy) from error
        _check_base(snapshot, image)
        if snapshot.defaults is not None:
            image = snapshot.defaults.applied_to(image)
        layers = self.layers.use(snapshot.layers)
        try:
            written = self.memories.use((snapshot.id,)) if memory else None
        except BaseException:
            layers.release()
            raise
        return Origin(image, layers, snapshot.id, written, snapshot.env)

    async def snapshot(self, sandbox: NodeSandbox, name: str | None, memory: bool | None) -> Snapshot:
        """Keeps `sandbox` as it is now; see `NodeSandbox.snapshot`."""
        if name is not None:
            check_name(name)
            self.tree.require_free(name)
        async with sandbox.transition:
            sandbox.require_machine()
            taken = await self.taking.take(sandbox, memory=takes_memory(sandbox, memory))
            parent = next((known for known in self.tree.all() if known.id == sandbox.origin.snapshot), None)
            snapshot = await self._kept(sandbox, taken, name, parent)
            sandbox.origin = replace(sandbox.origin, snapshot=snapshot.id)
        return snapshot

    async def rollback(self, sandbox: NodeSandbox, name_or_id: str, memory: bool | None) -> None:
        """Puts a machine that starts from the snapshot in the place of the present one, which goes on if that one does not start."""
        snapshot = self.tree.find(name_or_id)
        async with sandbox.transition:
            sandbox.require_machine()
            origin = await self.origin(snapshot, memory=goes_on(snapshot, sandbox.backend, memory))
            await self.exchange(sandbox, origin)

    async def exchange(self, sandbox: NodeSandbox, origin: Origin) -> None:
        """Starts a machine and puts it in the place of the present one. Takes `origin` over. The caller holds `transition`."""
        try:
            machine_id = f"{sandbox.id}g{sandbox.generation + 1}"
            running = await self.starter.start(Order(machine_id, sandbox.id, _pinned(sandbox), origin))
            try:
                await uninterrupted(sandbox.replace_machine(running, origin))
            except BaseException:
                if sandbox.machine is not running.machine:
                    await uninterrupted(running.end())
                raise
        except BaseException:
            if sandbox.origin is not origin:
                origin.release()
            raise

    async def fork(self, sandbox: NodeSandbox, count: int, memory: bool | None) -> list[NodeSandbox | AgentEnvError]:
        """Starts `count` children that go on from what `sandbox` is now; see `NodeSandbox.fork`."""
        if count < 1:
            raise InvalidState(f"a fork into {count} makes no sense.", remedy="Ask for at least one child.")
        async with sandbox.transition:
            sandbox.require_machine()
            origin, request = sandbox.origin, replace(_pinned(sandbox), snapshot=None, memory=None)
            # The parent may be gone before the last child has started.
            held = self.layers.use(origin.layers.ids)
            try:
                taken = await self.taking.take(sandbox, memory=takes_memory(sandbox, memory))
            except BaseException:
                held.release()
                raise
            below = origin.below if taken.files is not None else origin.layers.ids
        try:
            with self._published(sandbox, taken) as (top, written):
                return await self._children(request, replace(origin, layers=held), (*top, *below), written, count)
        finally:
            held.release()

    async def connect(self, running: Running, hostname: str, policy: EgressPolicy) -> Running:
        """Gives a machine that runs a network; see `Starter.connect`."""
        return await self.starter.connect(running, hostname, policy)

    async def delete(self, name_or_id: str) -> Snapshot:
        """Deletes a snapshot; what a live sandbox uses of it goes when that does.

        Raises `NotFound`, or `InvalidState` while it has children.
        """
        snapshot = await asyncio.to_thread(self.tree.delete, name_or_id)
        for layer in snapshot.layers:
            self.layers.remove(layer)
        if snapshot.memory:
            self.memories.remove(snapshot.id)
        return snapshot

    async def _kept(self, sandbox: NodeSandbox, taken: Taken, name: str | None, parent: Snapshot | None) -> Snapshot:
        """The snapshot of what was taken. One that is given up while it is written down is deleted: nobody would learn its id."""
        written: list[Snapshot] = []

        def write(snapshot: Snapshot) -> None:
            self.tree.add(snapshot)
            written.append(snapshot)

        try:
            return await uninterrupted(self.keeping.keep(sandbox, taken, name, parent, write))
        except asyncio.CancelledError:
            for snapshot in written:
                await uninterrupted(self.delete(snapshot.id))
            raise

    @contextmanager
    def _published(self, sandbox: NodeSandbox, taken: Taken) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Puts what was taken where children can use it, for as long as somebody does; gives the ids of the layer and of the memory."""
        identifier = f"a{secrets.token_hex(12)}"
        with ExitStack() as held:
            held.callback(self.taking.discard, taken)  # does nothing once all is in its place
            parts: list[tuple[str, ...]] = []
            for store, path in ((self.layers, taken.files), (self.memories, taken.memory)):
                used = store.publish(path, identifier) if path is not None else store.use(())
                held.callback(used.release)
                parts.append(used.ids)
            if taken.memory is not None:
                sandbox.written_down = identifier
            yield parts[0], parts[1]

    async def _children(
        self, request: SandboxRequest, origin: Origin, layers: tuple[str, ...], memory: tuple[str, ...], count: int
    ) -> list[NodeSandbox | AgentEnvError]:
        turn = asyncio.Semaphore(CHILDREN_AT_ONCE)
        born: list[NodeSandbox] = []

        async def child() -> NodeSandbox | AgentEnvError:
            async with turn:
                written = self.memories.use(memory) if memory else None
                start = replace(origin, layers=self.layers.use(layers), memory=written, env=request.env)
                try:
                    sandbox = await self.launch(request, start)
                except AgentEnvError as error:
                    return error
                born.append(sandbox)
                return sandbox

        try:
            return await asyncio.gather(*(child() for _ in range(count)))
        except BaseException:
            for sandbox in born:
                await sandbox.kill("its fork was broken off")
            raise


def goes_on(snapshot: Snapshot, isolation: str, wish: bool | None) -> bool:
    """Whether a machine of the backend `isolation` goes on from the snapshot's memory: by `wish`, else where there is one.

    Raises `CapabilityError` where it was asked for and is not there, and where the memory belongs to another backend: to leave the
    processes out without a word would be a surprise.
    """
    if wish and not snapshot.memory:
        raise CapabilityError(f"snapshot {snapshot.label} holds files only.", remedy="Leave `memory` out, or give `memory=False`.")
    if wish is False or not snapshot.memory:
        return False
    if isolation not in ("auto", snapshot.backend):
        raise CapabilityError(
            f"snapshot {snapshot.label} holds the memory of a sandbox of {snapshot.backend!r}; one of {isolation!r} cannot go on from it.",
            remedy=f"Give `memory=False` to start from its files only, or `isolation={snapshot.backend!r}`.",
        )
    return True


def _completed(wish: Resources, before: Resources) -> Resources:
    """The limits asked for, and where none was those that the processes had lived under."""
    missing = {name: getattr(before, name) for name in ("cpu", "memory", "storage") if getattr(wish, name) is None}
    return replace(wish, **missing)


def _check_disk_size(snapshot: Snapshot, wish: Resources) -> None:
    """A disk is as large as it was made, and that is the limit of what is written to it."""
    if snapshot.disk and wish.storage not in (None, snapshot.resources.storage):
        size = snapshot.resources.storage
        raise CapabilityError(
            f"snapshot {snapshot.label} is a disk {'without a limit' if size is None else f'of {size} bytes'}; `storage` cannot change it.",
            remedy="Leave `resources.storage` out.",
        )


def _pinned(sandbox: NodeSandbox) -> SandboxRequest:
    """What the sandbox was asked for, with the backend that it came to."""
    return replace(sandbox.request, isolation=sandbox.backend)


def _check_base(snapshot: Snapshot, image: RootFilesystem) -> None:
    found = fingerprint(image)
    if found != snapshot.base:
        raise CapabilityError(
            f"snapshot {snapshot.label} was made on {snapshot.base}, and image {snapshot.image} is {found} now.",
            remedy="Restore that image, or make the snapshot anew.",
        )
    present = {tree.name for tree in image.trees}
    missing = [target for name, target in snapshot.trees.items() if name not in present]
    if missing:
        raise CapabilityError(
            f"snapshot {snapshot.label} has changes in {', '.join(missing)}, which image {snapshot.image} does not show to this Python.",
            remedy="Use the Python installation that the snapshot was made with.",
        )
