"""Snapshot, rollback and fork of a live sandbox: what it wrote becomes a layer, and machines start from layers.

A layer is taken while the sandbox stands still, and it goes on as soon as its files are copied, whether or not that worked. Everything
that can be done later (finding equal content, making it durable) is done after that.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from agentenv.errors import AgentEnvError, CapabilityError, InfrastructureError, InvalidState, NotFound
from agentenv.images.fingerprint import fingerprint
from agentenv.isolation.contract import RootFilesystem
from agentenv.node.capacity import disk_full, is_disk_full
from agentenv.node.capture import copy_uppers, prepare_layer
from agentenv.node.layers import LayersInUse, LayerStore
from agentenv.node.owner import Owner
from agentenv.node.records import SandboxRequest
from agentenv.node.sandbox import NodeSandbox, Origin
from agentenv.node.snapshots import Snapshot, SnapshotTree, check_name, created_now, new_snapshot_id
from agentenv.node.starter import Order, Starter
from agentenv.node.trash import Trash
from agentenv.node.waiting import in_thread, uninterrupted

CHILDREN_AT_ONCE = 4
"""Children of one fork that start at the same time: starting is bound by the kernel, so more would only queue there."""


@dataclass(frozen=True, slots=True)
class Branching:
    """Does it for all sandboxes of a node. `image` resolves a reference, `launch` starts a sandbox of its own."""

    owner: Owner
    tree: SnapshotTree
    layers: LayerStore
    starter: Starter
    trash: Trash
    image: Callable[[str], Awaitable[RootFilesystem]]
    launch: Callable[[SandboxRequest, Origin], Awaitable[NodeSandbox]]

    async def origin(self, name_or_id: str) -> Origin:
        """What a sandbox that starts from this snapshot starts from; its layers are in use from now on.

        Raises `NotFound`, or `CapabilityError` when the image is not the one that the snapshot was made on any more.
        """
        snapshot = self.tree.find(name_or_id)
        try:
            image = await self.image(snapshot.image)
        except NotFound as error:
            raise NotFound(f"snapshot {snapshot.label} cannot be used: {error.message}", remedy=error.remedy) from error
        _check_base(snapshot, image)
        if snapshot.defaults is not None:
            image = snapshot.defaults.applied_to(image)
        return Origin(image, self.layers.use(snapshot.layers), snapshot.id)

    async def snapshot(self, sandbox: NodeSandbox, name: str | None) -> Snapshot:
        """Keeps the present files of `sandbox`; see `NodeSandbox.snapshot`."""
        if name is not None:
            check_name(name)
            self.tree.require_free(name)
        async with sandbox.transition:
            sandbox.require_alive()
            staging = await self._capture(sandbox)
            snapshot = await uninterrupted(self._keep(sandbox, staging, name))
            sandbox.origin = replace(sandbox.origin, snapshot=snapshot.id)
        return snapshot

    async def rollback(self, sandbox: NodeSandbox, name_or_id: str) -> None:
        """Puts a machine with the snapshot's files in the place of the present one, which goes on if that one does not start."""
        origin = await self.origin(name_or_id)
        try:
            async with sandbox.transition:
                sandbox.require_alive()
                machine_id = f"{sandbox.id}g{sandbox.generation + 1}"
                running = await self.starter.start(Order(machine_id, sandbox.id, sandbox.request, origin.image, origin.layers.paths))
                try:
                    await uninterrupted(sandbox.replace_machine(running, origin))
                except BaseException:
                    if sandbox.machine is not running.machine:
                        await uninterrupted(running.end())
                    raise
        except BaseException:
            if sandbox.origin is not origin:
                origin.layers.release()
            raise

    async def fork(self, sandbox: NodeSandbox, count: int) -> list[NodeSandbox | AgentEnvError]:
        """Starts `count` children with the files that `sandbox` has now; see `NodeSandbox.fork`."""
        if count < 1:
            raise InvalidState(f"a fork into {count} makes no sense.", remedy="Ask for at least one child.")
        async with sandbox.transition:
            sandbox.require_alive()
            origin, request = sandbox.origin, replace(sandbox.request, snapshot=None)
            # The parent may be gone before the last child has started.
            below = self.layers.use(origin.layers.ids)
            try:
                staging = await self._capture(sandbox)
            except BaseException:
                below.release()
                raise
        try:
            top = self.layers.publish(staging, f"a{secrets.token_hex(12)}") if staging else self.layers.use(())
            try:
                return await self._children(request, replace(origin, layers=below), (*top.ids, *below.ids), count)
            finally:
                top.release()
        finally:
            below.release()

    async def delete(self, name_or_id: str) -> Snapshot:
        """Deletes a snapshot; layers that a live sandbox uses go when it does. Raises `NotFound`, `InvalidState` while it has children."""
        snapshot = await asyncio.to_thread(self.tree.delete, name_or_id)
        for layer in snapshot.layers:
            self.layers.remove(layer)
        return snapshot

    async def _children(
        self, request: SandboxRequest, origin: Origin, layers: tuple[str, ...], count: int
    ) -> list[NodeSandbox | AgentEnvError]:
        turn = asyncio.Semaphore(CHILDREN_AT_ONCE)
        born: list[NodeSandbox] = []

        async def child() -> NodeSandbox | AgentEnvError:
            async with turn:
                try:
                    sandbox = await self.launch(request, replace(origin, layers=self.layers.use(layers)))
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

    async def _capture(self, sandbox: NodeSandbox) -> Path | None:
        """What `sandbox` wrote, copied while it stood still, in a directory of its own; None when that is nothing.

        The caller holds the sandbox's `transition`.
        """
        broken_off = threading.Event()
        uppers = [sandbox.directory / "upper" / tree.name for tree in sandbox.origin.image.trees]
        staging = self.owner.staging()

        def stop() -> bool:
            return broken_off.is_set() or sandbox.stopping.is_set()

        try:
            try:
                if sandbox.state == "running":
                    await uninterrupted(sandbox.machine.pause())
                entries = await in_thread(lambda: copy_uppers(uppers, staging, stop), broken_off.set)
            finally:
                if sandbox.state == "running":
                    await uninterrupted(sandbox.machine.resume())
        except OSError as error:
            self.trash.discard(staging)
            if is_disk_full(error):
                raise disk_full(sandbox.id, self.owner.directory) from error
            raise InfrastructureError(f"the files of sandbox {sandbox.id} could not be copied: {error}.") from error
        except BaseException:
            self.trash.discard(staging)
            raise
        if entries:
            return staging
        self.trash.discard(staging)
        return None

    async def _keep(self, sandbox: NodeSandbox, staging: Path | None, name: str | None) -> Snapshot:
        """Makes a snapshot of a captured layer."""
        origin = sandbox.origin
        parent = next((known for known in self.tree.all() if known.id == origin.snapshot), None)
        top, size = self.layers.use(()), 0
        try:
            if staging is not None:
                top, size = await self._keep_layer(staging, parent, origin.layers)
            layers = (*top.ids, *origin.layers.ids)
            touched = {path.name for layer in layers for path in (self.layers.directory / layer).iterdir()}
            snapshot = Snapshot(
                id=new_snapshot_id(),
                name=name,
                parent=parent.id if parent else None,
                image=origin.image.image,
                base=fingerprint(origin.image),
                trees={tree.name: tree.target for tree in origin.image.trees if tree.name in touched},
                layers=layers,
                created=created_now(parent),
                size=size,
                metadata=dict(sandbox.request.metadata),
                defaults=parent.defaults if parent else None,
            )
            await asyncio.to_thread(self.tree.add, snapshot)
            return snapshot
        finally:
            top.release()

    async def _keep_layer(self, staging: Path, parent: Snapshot | None, below: LayersInUse) -> tuple[LayersInUse, int]:
        """Stores a layer durably, under the digest of its content, unless it is there already; also says what it takes of the disk."""
        # The layer taken of the same writable files before, if there is one: most of the new one is equal to it.
        is_earlier = parent is not None and parent.layers[1:] == below.ids and len(parent.layers) > 0
        earlier = self.layers.use(parent.layers[:1] if parent is not None and is_earlier else ())
        try:
            identifier, size = await asyncio.to_thread(prepare_layer, staging, self.layers.directory, earlier.paths)
            return self.layers.publish(staging, identifier), size
        except BaseException:
            self.trash.discard(staging)
            raise
        finally:
            earlier.release()


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
