"""Blanks: machines that were booted once and written down before they were anybody's. Later ones go on from them instead of booting.

A blank lies in `snapshots/blanks/<key>/`: `memory/` as its backend wrote it, and its disk. The backend's key names all that it came from
(image, kernel, agent, monitor, limits), so that a blank of anything else is not found, and nothing has to be declared invalid.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from weakref import WeakValueDictionary

from agentenv.errors import AgentEnvError, ConfigError, InfrastructureError, NotFound, Stage, StartupTimeout
from agentenv.isolation.contract import Backend, Blanking, Checkpointing, Machine, MachineSpec
from agentenv.isolation.vm.disk import clone_disk
from agentenv.monitoring import EventSink
from agentenv.node import agent_words
from agentenv.node.layers import LayersInUse, LayerStore
from agentenv.node.origin import DISK
from agentenv.node.waiting import in_thread, uninterrupted

SWITCH = "AGENTENV_BLANKS"
"""`off` lets each machine boot by itself, so that no two have a kernel at the same addresses."""

KEPT = 8
UNUSED = 30 * 86400.0
"""So many blanks are kept, those used last, for so many seconds after their last use."""

MEMORY = "memory"
_NOBODY = "sandbox"

Started = tuple[Machine, tuple[Stage, ...]]
"""A machine that runs, and the stages of its start."""

_SWITCH = {"on": True, "off": False}


class Blanks:
    """The blanks of one AGENTENV_HOME. `staging` gives a fresh directory beside it, `discard` takes one away."""

    def __init__(self, directory: Path, staging: Callable[[], Path], discard: Callable[[Path], None], events: EventSink) -> None:
        self.store = LayerStore(directory, self._recent, discard)
        self._staging = staging
        self._discard = discard
        self._events = events
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def serve(self, backend: Backend) -> Blanking | None:
        """The backend, where its machines are started from blanks. Raises `ConfigError` for a switch that is neither on nor off."""
        return backend if _is_on(os.environ) and isinstance(backend, Blanking) else None

    def making(self, key: str) -> asyncio.Lock:
        """Whoever has it may look for the blank, and makes it where there is none: the others wait for it."""
        return self._making.setdefault(key, asyncio.Lock())

    def find(self, key: str) -> LayersInUse | None:
        """The blank, in use from now on, if there is one."""
        try:
            blank = self.store.use((key,))
        except NotFound:
            return None
        os.utime(blank.paths[0])
        return blank

    async def boot(self, backend: Blanking, spec: MachineSpec, machine_id: str, key: str) -> Started:
        """A machine that booted, was written down as the blank of that key, and then became the one that `spec` asks for.

        That it could not be written down is no fault of the machine. Raises what `Backend.start` raises.
        """
        machine = await backend.start(replace(spec, hostname=_NOBODY, env={}))
        async with AsyncExitStack() as abandon:
            abandon.push_async_callback(machine.kill)
            begun = perf_counter()
            await self._keep(machine, spec.directory, key)
            kept = Stage("blank", perf_counter() - begun)
            become = await _become(machine, spec, machine_id)
            abandon.pop_all()
        return machine, (*machine.stages, kept, become)

    async def go_on(self, backend: Blanking, spec: MachineSpec, machine_id: str, blank: LayersInUse) -> Started | None:
        """A machine that goes on from the blank as the one that `spec` asks for; None where the blank is of no use, which is removed."""
        directory, disk = blank.paths[0], spec.directory / "upper" / DISK
        try:
            await in_thread(lambda: clone_disk(directory / DISK, disk), lambda: None)
            machine = await backend.restore(spec, directory / MEMORY)
            async with AsyncExitStack() as abandon:
                abandon.push_async_callback(machine.kill)
                become = await _become(machine, spec, machine_id)
                abandon.pop_all()
            return machine, (*machine.stages, become)
        except StartupTimeout:
            raise
        except (AgentEnvError, OSError) as error:
            self._events.emit("blank.refused", id=blank.ids[0], error=str(error))
            blank.release()
            self._discard(directory)
            disk.unlink(missing_ok=True)
            return None

    async def _keep(self, machine: Machine, directory: Path, key: str) -> None:
        staging = self._staging()
        try:
            await uninterrupted(_write_down(machine, directory, staging))
            self.store.publish(staging, key).release()
        except (InfrastructureError, OSError) as error:
            self._events.emit("blank.failed", id=key, error=str(error))
        finally:
            self._discard(staging)  # does nothing once it is in its place
        for old in self.store.unneeded():
            self.store.remove(old)

    def _recent(self) -> frozenset[str]:
        used = sorted(((path.stat().st_mtime, path.name) for path in self.store.directory.iterdir()), reverse=True)
        return frozenset(name for moment, name in used[:KEPT] if moment > time.time() - UNUSED)


async def _write_down(machine: Machine, directory: Path, target: Path) -> None:
    assert isinstance(machine, Checkpointing)
    await agent_words.freeze(machine, disk=True)
    await machine.pause()
    try:
        (target / MEMORY).mkdir()
        await machine.checkpoint(target / MEMORY)
        await asyncio.to_thread(clone_disk, directory / "upper" / DISK, target / DISK)
    finally:
        await machine.resume()


async def _become(machine: Machine, spec: MachineSpec, machine_id: str) -> Stage:
    """Whoever the machine was, from now on it is that of `spec`, and its agent writes to its disk again."""
    begun = perf_counter()
    await agent_words.restored(machine, spec.hostname, machine_id, timeout=spec.timeouts.startup, hooks=False)
    await agent_words.tell(machine, "configure", env=dict(spec.env), user=spec.root.user, cwd=spec.root.cwd)
    return Stage("restored", perf_counter() - begun)


def _is_on(environment: Mapping[str, str]) -> bool:
    wish = environment.get(SWITCH, "on")
    if wish not in _SWITCH:
        raise ConfigError(f"{SWITCH} is {wish!r}.", remedy="Set it to `on` or `off`.")
    return _SWITCH[wish]
