"""Takes what a sandbox is at one moment: its files, and where that is wanted its memory with every process in it.

The sandbox stands still for that, and goes on as soon as all is copied, whether or not that worked.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.errors import AgentEnvError, CapabilityError, InfrastructureError, NotFound
from agentenv.isolation.contract import Checkpointing, Machine
from agentenv.isolation.vm.disk import clone_disk
from agentenv.monitoring import EventSink
from agentenv.node import agent_words
from agentenv.node.capacity import disk_full, is_disk_full
from agentenv.node.capture import copy_uppers
from agentenv.node.layers import LayersInUse, LayerStore
from agentenv.node.origin import DISK
from agentenv.node.owner import Owner
from agentenv.node.sandbox import NodeSandbox
from agentenv.node.trash import Trash
from agentenv.node.waiting import in_thread, uninterrupted

FILES_ONLY = "Give `memory=False` for its files only."


@dataclass(frozen=True, slots=True)
class Taken:
    """Directories of their own: `files` holds what the sandbox wrote, or its disk (None: nothing), `memory` what its backend wrote down."""

    files: Path | None
    memory: Path | None


def takes_memory(sandbox: NodeSandbox, wish: bool | None) -> bool:
    """Whether memory is taken: None is "where it can be". Raises `CapabilityError` where it was asked for and cannot be."""
    obstacle = sandbox.memory_obstacle
    if wish and obstacle is not None:
        raise CapabilityError(obstacle, remedy=FILES_ONLY)
    return wish is not False and obstacle is None


@dataclass(frozen=True, slots=True)
class Taking:
    """Does it for all sandboxes of a node."""

    owner: Owner
    memories: LayerStore
    trash: Trash
    events: EventSink

    async def take(self, sandbox: NodeSandbox, *, memory: bool, later: AsyncExitStack | None = None) -> Taken:
        """The caller holds the sandbox's `transition`. With `later` it goes on only when that is closed.

        Raises `StorageFull`, `InfrastructureError`, `InvalidState` when it ends meanwhile; then nothing is left, and it goes on.
        """
        async with AsyncExitStack() as undo:
            try:
                files, written = self._staging(undo), self._staging(undo) if memory else None
                async with AsyncExitStack() as going_on:
                    await self._stand_still(sandbox, going_on, told=memory or sandbox.capabilities.disk_image)
                    if written is not None:
                        await self._write_memory(sandbox, written)
                    anything = await self._copy_files(sandbox, files)
                    if later is not None:
                        later.push_async_callback(going_on.pop_all().aclose)
            except (OSError, InfrastructureError) as error:
                # Before anything is cleared away, so that the figures of a full disk are those of the moment.
                raise explained(error, sandbox.id, self.owner.directory) from error
            undo.pop_all()
        if anything:
            return Taken(files, written)
        self.trash.discard(files)
        return Taken(None, written)

    def discard(self, taken: Taken) -> None:
        """Throws away what was taken."""
        for path in (taken.files, taken.memory):
            if path is not None:
                self.trash.discard(path)

    def _staging(self, undo: AsyncExitStack) -> Path:
        path = self.owner.staging()
        undo.callback(self.trash.discard, path)
        return path

    async def _stand_still(self, sandbox: NodeSandbox, going_on: AsyncExitStack, *, told: bool) -> None:
        """Stops the sandbox; with `told` its agent hears of it before, for which a paused one has to run for a moment.

        A disk is flushed also where memory has what is not on it yet: the files alone must be whole, too.
        """
        machine, runs = sandbox.machine, sandbox.state == "running"
        if not runs and told:
            going_on.push_async_callback(_to_the_end, machine.pause)
            await uninterrupted(machine.resume())
        if told:
            going_on.push_async_callback(self._thaw, sandbox, machine)
            await uninterrupted(agent_words.freeze(machine, disk=sandbox.capabilities.disk_image))
        if runs or told:
            going_on.push_async_callback(_to_the_end, machine.resume)
            await uninterrupted(machine.pause())

    async def _thaw(self, sandbox: NodeSandbox, machine: Machine) -> None:
        try:
            await uninterrupted(agent_words.thaw(machine))
            if sandbox.capabilities.disk_image:
                await uninterrupted(agent_words.tell_time(machine))
        except InfrastructureError as error:
            # It thaws by itself; a sandbox whose agent does not answer is dead or will be found to be.
            self.events.emit("sandbox.thaw_failed", id=sandbox.id, error=str(error))

    async def _write_memory(self, sandbox: NodeSandbox, directory: Path) -> None:
        machine = sandbox.machine
        if not isinstance(machine, Checkpointing):
            raise CapabilityError(f"the machine of sandbox {sandbox.id} cannot be written down.", remedy=FILES_ONLY)
        parent = self._parent(sandbox)
        # What changed is counted from the last time on that the machine was written down, whether or not anybody has the result.
        sandbox.written_down = None
        try:
            await uninterrupted(machine.checkpoint(directory, parent.paths[0] if parent else None))
        except InfrastructureError as error:
            if type(error) is InfrastructureError and error.remedy is None:
                raise InfrastructureError(error.message, remedy=FILES_ONLY) from error
            raise
        finally:
            if parent is not None:
                parent.release()

    def _parent(self, sandbox: NodeSandbox) -> LayersInUse | None:
        if sandbox.written_down is None:
            return None
        try:
            return self.memories.use((sandbox.written_down,))
        except NotFound:
            return None

    async def _copy_files(self, sandbox: NodeSandbox, staging: Path) -> bool:
        """Returns whether there is anything."""
        upper = sandbox.directory / "upper"
        if sandbox.capabilities.disk_image:
            await in_thread(lambda: clone_disk(upper / DISK, staging / DISK), lambda: None)
            return True
        broken_off = threading.Event()
        uppers = [upper / tree.name for tree in sandbox.origin.image.trees]

        def stop() -> bool:
            return broken_off.is_set() or sandbox.stopping.is_set()

        return await in_thread(lambda: copy_uppers(uppers, staging, stop), broken_off.set) > 0


def explained(error: OSError | InfrastructureError, identifier: str, disk: Path) -> AgentEnvError:
    """What it means for a sandbox that it could not be kept below the directory `disk`: the disk is full, or the error itself."""
    if _tells_of_full_disk(error):
        return disk_full(identifier, disk)
    if isinstance(error, InfrastructureError):
        return error
    return InfrastructureError(f"sandbox {identifier} could not be kept: {error}.", remedy="Check the disk of AGENTENV_HOME.")


async def _to_the_end(step: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await uninterrupted(step())


def _tells_of_full_disk(error: BaseException | None) -> bool:
    """Whether that is the cause, also where a program of the backend only said so in its own words."""
    while error is not None:
        if (isinstance(error, OSError) and is_disk_full(error)) or os.strerror(errno.ENOSPC).lower() in str(error).lower():
            return True
        error = error.__cause__
    return False
