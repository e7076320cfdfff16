"""Makes a snapshot of what was taken of a sandbox: durable, compared with what is kept already, each part in its place."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from agentenv.images.files import allocated_bytes, sync_tree
from agentenv.images.fingerprint import fingerprint
from agentenv.node.capture import prepare_layer
from agentenv.node.layers import LayersInUse, LayerStore
from agentenv.node.origin import DISK
from agentenv.node.sandbox import NodeSandbox
from agentenv.node.snapshots import Snapshot, created_now, new_snapshot_id
from agentenv.node.taking import Taken, explained
from agentenv.node.trash import Trash


@dataclass(frozen=True, slots=True)
class Keeping:
    """Does it for all sandboxes of a node."""

    layers: LayerStore
    memories: LayerStore
    trash: Trash

    async def keep(
        self, sandbox: NodeSandbox, taken: Taken, name: str | None, parent: Snapshot | None, write: Callable[[Snapshot], None]
    ) -> Snapshot:
        """The snapshot of what was taken. All that it names is in its place when `write` is called, which writes it down, in a thread.

        Whatever fails, what was taken is thrown away, and nothing of it is left. Raises `StorageFull`, `InfrastructureError`.
        """
        try:
            return await self._keep(sandbox, taken, name, parent, write)
        except OSError as error:
            raise explained(error, sandbox.id, self.layers.directory) from error

    async def _keep(
        self, sandbox: NodeSandbox, taken: Taken, name: str | None, parent: Snapshot | None, write: Callable[[Snapshot], None]
    ) -> Snapshot:
        identifier = new_snapshot_id()
        with ExitStack() as held:
            for path in (taken.files, taken.memory):
                if path is not None:
                    held.callback(self.trash.discard, path)  # does nothing once it has been moved to its place
            top, size = await self._keep_files(sandbox, taken.files, parent)
            held.callback(top.release)
            if taken.memory is not None:
                memory, more = await self._keep_memory(taken.memory, identifier)
                held.callback(memory.release)
                size += more
            snapshot = self._describe(sandbox, identifier, name, parent, top, size, memory=taken.memory is not None)
            await asyncio.to_thread(write, snapshot)
            if snapshot.memory:
                sandbox.written_down = identifier
        return snapshot

    def _describe(
        self, sandbox: NodeSandbox, identifier: str, name: str | None, parent: Snapshot | None, top: LayersInUse, size: int, *, memory: bool
    ) -> Snapshot:
        origin = sandbox.origin
        layers = (*top.ids, *(origin.below if top.ids else origin.layers.ids))
        touched = {path.name for layer in layers for path in (self.layers.directory / layer).iterdir()}
        return Snapshot(
            id=identifier,
            name=name,
            parent=parent.id if parent else None,
            image=origin.image.image,
            base=fingerprint(origin.image),
            trees={tree.name: tree.target for tree in origin.image.trees if tree.name in touched},
            layers=layers,
            created=created_now(parent),
            size=size,
            metadata=dict(sandbox.request.metadata),
            memory=memory,
            backend=sandbox.backend,
            disk=DISK in touched,
            resources=sandbox.request.resources,
            env=dict(sandbox.request.env),
            defaults=parent.defaults if parent else None,
        )

    async def _keep_files(self, sandbox: NodeSandbox, staging: Path | None, parent: Snapshot | None) -> tuple[LayersInUse, int]:
        """Stores a layer durably, under the digest of its content, unless it is there already; also says what it takes of the disk."""
        if staging is None:
            return self.layers.use(()), 0
        if (staging / DISK).exists():
            # To read a whole disk for a digest would take longer than to keep it twice in the rare case of two equal ones.
            return await self._store(self.layers, staging, f"d{secrets.token_hex(20)}")
        below = sandbox.origin.below
        # The layer taken of the same writable files before, if there is one: most of the new one is equal to it.
        is_earlier = parent is not None and parent.layers[1:] == below and len(parent.layers) > 0
        earlier = self.layers.use(parent.layers[:1] if parent is not None and is_earlier else ())
        try:
            identifier, size = await asyncio.to_thread(prepare_layer, staging, self.layers.directory, earlier.paths)
            return self.layers.publish(staging, identifier), size
        finally:
            earlier.release()

    async def _keep_memory(self, staging: Path, identifier: str) -> tuple[LayersInUse, int]:
        return await self._store(self.memories, staging, identifier)

    @staticmethod
    async def _store(store: LayerStore, staging: Path, identifier: str) -> tuple[LayersInUse, int]:
        size = await asyncio.to_thread(allocated_bytes, staging)
        await asyncio.to_thread(sync_tree, staging)
        return store.publish(staging, identifier), size
