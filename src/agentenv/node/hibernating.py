"""Pauses sandboxes to the disk and lets them go on from there, in this process or another."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from agentenv.errors import CapabilityError, NotFound
from agentenv.isolation import probe_all
from agentenv.isolation.contract import Capabilities, RootFilesystem
from agentenv.node.branching import Branching
from agentenv.node.hibernated import Hibernated, HibernatedStore, NoMachine
from agentenv.node.origin import Origin
from agentenv.node.sandbox import NodeSandbox
from agentenv.node.snapshots import Snapshot
from agentenv.node.starter import Running
from agentenv.node.surroundings import Surroundings
from agentenv.node.waiting import uninterrupted


@dataclass(frozen=True, slots=True)
class Hibernating:
    """Does it for all sandboxes of a node."""

    store: HibernatedStore
    branching: Branching

    async def hibernate(self, sandbox: NodeSandbox) -> None:
        """Writes the sandbox down and ends its machine; see `NodeSandbox.pause`."""
        if sandbox.memory_obstacle is not None:
            raise CapabilityError(sandbox.memory_obstacle, remedy=await asyncio.to_thread(_who_can))

        def write(snapshot: Snapshot) -> None:
            self.store.add(record := sandbox.at_rest(snapshot))
            written.append(record)

        written: list[Hibernated] = []
        parent = next((known for known in self.branching.tree.all() if known.id == sandbox.origin.snapshot), None)
        machine = sandbox.machine
        try:
            async with AsyncExitStack() as going_on:
                taken = await self.branching.taking.take(sandbox, memory=True, later=going_on)
                await uninterrupted(self.branching.keeping.keep(sandbox, taken, None, parent, write))
                try:
                    await uninterrupted(sandbox.leave_machine())
                finally:
                    if sandbox.machine is not machine:
                        going_on.pop_all()
        except BaseException:
            if written and sandbox.machine is machine:
                self.forget(sandbox.id)
            raise

    async def wake(self, sandbox: NodeSandbox) -> None:
        """Starts a machine that goes on from the disk; see `NodeSandbox.resume`."""
        try:
            record, lock = self.store.claim(sandbox.id)
        except NotFound:
            sandbox.require_alive()
            raise
        with lock:
            origin = replace(await self.branching.origin(record.snapshot, memory=True), snapshot=record.snapshot.parent)
            sandbox.request, sandbox.generation = record.request, record.generation
            await self.branching.exchange(sandbox, origin)
            self.store.remove(sandbox.id)

    def adopt(self, identifier: str, around: Surroundings[NodeSandbox]) -> NodeSandbox:
        """A sandbox that has no owner, as one of this node. Raises `NotFound`."""
        record = self.store.find(identifier)
        if record is None:
            raise NotFound(f"sandbox {identifier} is not paused to the disk.", remedy="`agentenv ls` shows those that there are.")
        image = RootFilesystem((), record.snapshot.image)
        origin = Origin(image, self.branching.layers.use(()), record.snapshot.parent)
        directory = self.branching.taking.owner.machine_directory(identifier)
        running = Running(NoMachine(identifier), record.snapshot.backend or "", Capabilities(), directory, (), AsyncExitStack())
        return NodeSandbox(identifier, record.request, origin, running, around, record)

    def holds(self, identifier: str) -> bool:
        """Whether a sandbox is paused to the disk."""
        return self.store.holds(identifier)

    def forget(self, identifier: str) -> None:
        """Ends a sandbox that is paused to the disk. Raises `NotFound`, or `InvalidState` when another process lets it go on just now."""
        record, lock = self.store.claim(identifier)
        with lock:
            self.store.remove(identifier)
        for layer in record.snapshot.layers:
            self.branching.layers.remove(layer)
        self.branching.memories.remove(record.snapshot.id)


def _who_can() -> str:
    able = [probe.backend for probe in probe_all() if probe.usable and probe.capabilities.memory_snapshot]
    if not able:
        return "No backend of this machine can; `agentenv doctor` says what they lack."
    return f"Use `isolation: {' | '.join(able)}` without a network, or keep its files by `snapshot()`."
