"""Keeps the files of sandboxes whose owner died, where that owner had wished so: each becomes a snapshot from which it can go on.

Its processes are gone with its owner. What they had written is whole: the kernel holds it, whatever became of them. Of a virtual machine it
is what had reached its disk, as after a power cut.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agentenv.errors import AgentEnvError, InfrastructureError
from agentenv.images.files import allocated_bytes, sync_tree
from agentenv.images.fingerprint import fingerprint
from agentenv.isolation.contract import Resources, RootFilesystem
from agentenv.isolation.namespace.makers import start_ticks
from agentenv.isolation.vm.disk import clone_disk
from agentenv.monitoring import EventSink
from agentenv.node.capture import copy_uppers, prepare_layer
from agentenv.node.journal import read_journal, understood
from agentenv.node.layers import LayersInUse, LayerStore
from agentenv.node.origin import DISK
from agentenv.node.owner import JOURNAL, Owner
from agentenv.node.snapshots import Snapshot, SnapshotTree, created_now, new_snapshot_id
from agentenv.node.trash import Trash

FACT = "salvage"
"""What the wish is called in the journal of an owner."""
PATIENCE = 10.0
"""Seconds in which a killed process must be gone."""


class Wish(msgspec.Struct, frozen=True):
    """That a sandbox's files be kept, as a snapshot with this metadata; and what it has been given, which the snapshot remembers."""

    metadata: Mapping[str, str]
    resources: Resources = Resources()
    env: Mapping[str, str] = {}


class _Left(msgspec.Struct, frozen=True):
    """What the journal of the dead tells of one sandbox. `layers` lie below what it wrote, the topmost first."""

    image: str
    backend: str
    directory: Path
    layers: tuple[str, ...]
    salvage: Wish
    snapshot: str | None = None
    init: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Salvage:
    """Does it for all dead owners of one AGENTENV_HOME. `image` resolves a reference."""

    owner: Owner
    tree: SnapshotTree
    layers: LayerStore
    trash: Trash
    image: Callable[[str], Awaitable[RootFilesystem]]
    events: EventSink

    async def keep(self, dead: Path) -> None:
        """Keeps what the owner of the directory `dead` had wished to be kept. What cannot be is passed over, and an event says why."""
        for identifier, facts in (await asyncio.to_thread(read_journal, dead / JOURNAL)).items():
            if facts.get(FACT) is None:
                continue
            try:
                kept = await self._keep(understood(facts, _Left))
            except (AgentEnvError, OSError, msgspec.ValidationError) as error:
                self.events.emit("sandbox.not_salvaged", id=identifier, error=str(error))
            else:
                self.events.emit("sandbox.salvaged", id=identifier, snapshot=kept.id)

    async def _keep(self, left: _Left) -> Snapshot:
        await _killed(left.init)
        image = await self.image(left.image)
        with ExitStack() as held:
            below = self.layers.use(left.layers)
            held.callback(below.release)
            top, size = await self._files(left, image)
            held.callback(top.release)
            snapshot = self._describe(left, image, (*top.ids, *below.ids), size)
            await asyncio.to_thread(self.tree.add, snapshot)
        return snapshot

    async def _files(self, left: _Left, image: RootFilesystem) -> tuple[LayersInUse, int]:
        """What the sandbox wrote, as a layer that is durable and in use; and what that takes of the disk."""
        upper, staging = left.directory / "upper", self.owner.staging()
        try:
            if (upper / DISK).exists():
                await asyncio.to_thread(clone_disk, upper / DISK, staging / DISK)
                await asyncio.to_thread(sync_tree, staging)
                size = await asyncio.to_thread(allocated_bytes, staging)
                return self.layers.publish(staging, f"d{secrets.token_hex(20)}"), size
            written = [path for tree in image.trees if (path := upper / tree.name).is_dir()]
            if not await asyncio.to_thread(copy_uppers, written, staging, lambda: False):
                return self.layers.use(()), 0
            identifier, size = await asyncio.to_thread(prepare_layer, staging, self.layers.directory, ())
            return self.layers.publish(staging, identifier), size
        finally:
            self.trash.discard(staging)  # does nothing once it has been moved to its place

    def _describe(self, left: _Left, image: RootFilesystem, layers: tuple[str, ...], size: int) -> Snapshot:
        touched = {path.name for layer in layers for path in (self.layers.directory / layer).iterdir()}
        parent = next((known for known in self.tree.all() if known.id == left.snapshot), None)
        return Snapshot(
            id=new_snapshot_id(),
            name=None,
            parent=parent.id if parent else None,
            image=image.image,
            base=fingerprint(image),
            trees={tree.name: tree.target for tree in image.trees if tree.name in touched},
            layers=layers,
            created=created_now(parent),
            size=size,
            metadata=dict(left.salvage.metadata),
            backend=left.backend,
            disk=DISK in touched,
            resources=left.salvage.resources,
            env=dict(left.salvage.env),
            defaults=parent.defaults if parent else None,
        )


async def _killed(init: tuple[int, int] | None) -> None:
    """Returns when the first process of a sandbox, and with it every other, is gone. Raises `InfrastructureError` if it stays."""
    if init is None:
        return
    pid, started = init
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    try:
        # The descriptor keeps meaning this process; so its start time is compared once it is open.
        if start_ticks(pid) != started:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        loop.add_reader(descriptor, ended.set)
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
    except TimeoutError as error:
        raise InfrastructureError(f"process {pid} of a dead owner's sandbox does not end.", remedy="Run `agentenv gc` later.") from error
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
