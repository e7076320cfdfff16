"""The node's side of one sandbox: its states, its limits, its end. What users hold is `agentenv.AsyncSandbox`, a handle around this."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal

from agentenv.egress.denials import Denial
from agentenv.egress.guard import Guard
from agentenv.egress.policy import EgressPolicy
from agentenv.errors import AgentEnvError, InvalidState, NotFound, SandboxDied, Stage, StorageFull
from agentenv.guest import dial
from agentenv.images.files import allocated_bytes
from agentenv.isolation.contract import Capabilities, Exit, Machine, Resources, Usage
from agentenv.node import agent_words
from agentenv.node.hibernated import HIBERNATED, Hibernated, NoMachine, hibernated
from agentenv.node.killing import killed_from_outside
from agentenv.node.lifetime import Lifetime
from agentenv.node.machines import HasProcess, SometimesCheckpointing, first_process
from agentenv.node.origin import Origin
from agentenv.node.portforward import LOOPBACK, PortForward
from agentenv.node.records import SandboxRequest, StorageKill
from agentenv.node.snapshots import Snapshot
from agentenv.node.starter import Running
from agentenv.node.storage_policy import StoragePolicy
from agentenv.node.surroundings import Surroundings
from agentenv.node.waiting import uninterrupted

State = Literal["running", "paused", "hibernated", "dead"]


class NodeSandbox:
    """One sandbox that this process owns. `kill` works in every state and is idempotent; everything else raises once it is dead.

    `request` carries the limits as they are now; `failure` is the error that explains a death that nobody here asked for.
    """

    def __init__(
        self,
        identifier: str,
        request: SandboxRequest,
        origin: Origin,
        running: Running,
        around: Surroundings[NodeSandbox],
        at_rest: Hibernated | None = None,
    ) -> None:
        """Around a machine that runs, or with `at_rest` around none."""
        self.id = identifier
        self.generation = at_rest.generation if at_rest else 1
        self.request = request
        self.origin = origin
        self.state: State = "hibernated" if at_rest else "running"
        self.created = at_rest.created if at_rest else time.time()
        self.failure: AgentEnvError | None = None
        self.transition = asyncio.Lock()
        """Held by whatever changes the state or needs it to stay as it is."""
        self.stopping = threading.Event()
        """Set when the sandbox ends, for those who copy its files in another thread."""
        self.written_down = origin.memory.ids[0] if origin.memory else None
        """Where its memory was last written to: what it changed since can be written instead of all, as long as that exists."""
        self._running = running
        self._around = around
        self._reason = ""
        self._exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Task[Exit] | None = None
        self._ports: PortForward | None = None
        self._rested = asyncio.Event()
        self._left = at_rest.lifetime if at_rest else None
        self._watch: asyncio.Task[None] | None = None
        self._init: tuple[int, int] | None = None
        self._policy = StoragePolicy(identifier, self._processes, self._end_for_storage, around.events)
        self._lifetime = Lifetime(self._expire)
        if at_rest is None:
            self._lifetime.set(request.lifetime)
            self._begin_watch()
        else:
            self._rested.set()
        self._record(created=self.created)

    @property
    def machine(self) -> Machine:
        """The machine of the present generation."""
        return self._running.machine

    @property
    def backend(self) -> str:
        """The name of the backend that it runs on."""
        return self._running.backend

    @property
    def directory(self) -> Path:
        """The machine's directory; `agent.sock` and `upper/` lie there."""
        return self._running.directory

    @property
    def timings(self) -> tuple[Stage, ...]:
        """The stages of the present generation's start, in order."""
        return self._running.stages

    @property
    def capabilities(self) -> Capabilities:
        """What its backend can do, with this very sandbox."""
        able = self._running.capabilities
        return replace(able, memory_snapshot=False) if able.memory_snapshot and self.memory_obstacle else able

    @property
    def memory_obstacle(self) -> str | None:
        """Why no snapshot can hold its memory; None where one can."""
        if not self._running.capabilities.memory_snapshot:
            return f"sandbox {self.id} runs on {self.backend!r}, which cannot write memory down."
        machine = self.machine
        return machine.checkpoint_obstacle if isinstance(machine, SometimesCheckpointing) else None

    def require_alive(self) -> None:
        """Raises the sandbox's `failure`, or `InvalidState` when it was ended on purpose."""
        if self.state == HIBERNATED and not self._around.hibernating.holds(self.id):
            self.begin_end("another process let it go on from the disk, or ended it")
        if self.state == "dead":
            raise self.failure or InvalidState(f"sandbox {self.id} is gone: {self._reason}.", remedy="Create another one.")

    def require_machine(self) -> None:
        """The same, and raises `InvalidState` when it is paused to the disk."""
        self.require_alive()
        if self.state == HIBERNATED:
            raise hibernated(self.id)

    async def pause(self, to_disk: bool = False) -> None:
        """Freezes every process; nothing happens when it is paused already.

        With `to_disk` it is written down with its memory, and nothing of it runs or takes memory any more. Raises `CapabilityError` where
        it cannot be, `StorageFull` and other faults; it goes on then as it was.
        """
        async with self.transition:
            self.require_alive()
            if to_disk and self.state != HIBERNATED:
                await self._around.hibernating.hibernate(self)
            elif self.state == "running":
                await self.machine.pause()
                self._enter("paused")

    async def resume(self) -> None:
        """Lets it go on; nothing happens when it runs already. From the disk it goes on in a new generation; raises what a start raises."""
        async with self.transition:
            self.require_alive()
            if self.state == "paused":
                await self.machine.resume()
                self._enter("running")
                if self.capabilities.disk_image:
                    await agent_words.tell_time(self.machine)
            elif self.state == HIBERNATED:
                await self._around.hibernating.wake(self)

    async def resize(self, resources: Resources) -> None:
        """Changes the limits while it runs; None in a field leaves that limit. Raises `CapabilityError` for what cannot be had."""
        self._around.capacity.check(resources)
        async with self.transition:
            self.require_machine()
            await self.machine.resize(resources)
            given = {field.name: value for field in fields(resources) if (value := getattr(resources, field.name)) is not None}
            self.request = replace(self.request, resources=replace(self.request.resources, **given))
            if resources.storage is not None:
                self._watch_storage()
            self._around.events.emit("sandbox.resized", id=self.id, **given)

    async def usage(self) -> Usage:
        """What it uses now; `storage` is what its files take of the disk, also where its backend does not tell."""
        self.require_machine()
        usage, written = await asyncio.gather(self.machine.usage(), asyncio.to_thread(allocated_bytes, self._upper))
        return usage if usage.storage is not None else replace(usage, storage=written)

    async def storage_kills(self) -> tuple[StorageKill, ...]:
        """The processes that were ended because they wrote beyond the storage limit, the oldest first."""
        return tuple(self._policy.kills)

    async def host_port(self, port: int) -> tuple[str, int]:
        """Where on this machine's loopback that port of the sandbox can be reached, over every generation of it."""
        self.require_alive()
        if not 0 < port < 65536:
            raise InvalidState(f"{port} is no port.", remedy="Ports are 1 to 65535.")
        if self._ports is None:
            self._ports = PortForward()
        return LOOPBACK, await self._ports.forward(port, self._dial)

    async def set_network(self, policy: EgressPolicy) -> None:
        """Changes what it may reach from now on, in its children and after a rollback too; connections that are denied now end.

        One without a network is given one, where it runs and its backend can. Raises `InvalidState` where that cannot be,
        `InfrastructureError`; then what it reaches is at most what either policy allows.
        """
        async with self.transition:
            self.require_alive()
            if self._running.guard is not None:
                await uninterrupted(self._running.guard.change(policy))
            else:
                if self.state != "running":
                    raise InvalidState(f"sandbox {self.id} is {self.state} and has no network.", remedy="Call `resume()` first.")
                self._running = await uninterrupted(self._around.branching.connect(self._running, self.id, policy))
            self.request = replace(self.request, network=replace(self.request.network, enabled=True, policy=policy))
            self._around.events.emit("network.changed", id=self.id, **policy.to_dict())

    async def network_log(self) -> tuple[Denial, ...]:
        """What it was refused since its machine started, the last 500 times, the oldest first. Raises `InvalidState` without a network."""
        return self._guard().denials()

    def _guard(self) -> Guard:
        self.require_alive()
        if self._running.guard is None:
            raise InvalidState(f"sandbox {self.id} has no network.", remedy="Give it rules with `set_network`.")
        return self._running.guard

    async def set_lifetime(self, seconds: float | None) -> None:
        """It ends `seconds` from now, whatever was granted before; None is without end."""
        self.require_machine()
        self._lifetime.set(seconds)
        self._record()

    async def kill(self, reason: str = "it was killed") -> Exit:
        """Ends it and frees what it held, also when the caller is cancelled meanwhile; returns how it ended."""
        return await asyncio.shield(self.begin_end(reason))

    async def wait(self) -> Exit:
        """Returns when it has ended, by whatever cause."""
        return await asyncio.shield(self._exit)

    async def wait_until_at_rest(self) -> None:
        """Returns when it has ended or is paused to the disk."""
        await self._rested.wait()

    def begin_end(self, reason: str, failure: AgentEnvError | None = None, *, leave: bool = False) -> asyncio.Task[Exit]:
        """Declares it dead from this moment on, and frees what it holds in a task of its own; the first reason counts.

        With `leave` one that is paused to the disk stays there, for others.
        """
        if self._ending is None:
            forgotten = self.state == HIBERNATED and not leave
            self.state, self.failure, self._reason = "dead", failure, reason
            self.stopping.set()
            self._lifetime.cancel()
            self._end_watch()
            self._ending = asyncio.create_task(self._end(forgotten))
        return self._ending

    async def snapshot(self, name: str | None = None, memory: bool | None = None) -> Snapshot:
        """Keeps its files as they are now, with `memory` its processes too (and /tmp, /run, /dev/shm). It stands still meanwhile.

        `memory` None is "where this sandbox can be written down", which `Snapshot.memory` then tells. The name must be free. Raises
        `CapabilityError`, `InvalidState`, `StorageFull`, `InfrastructureError`; the sandbox goes on in any case.
        """
        return await self._around.branching.snapshot(self, name, memory)

    async def rollback(self, name_or_id: str, memory: bool | None = None) -> None:
        """Goes back to a snapshot, any one: a new machine in the next generation, in which nothing runs but what the snapshot holds.

        `memory` False goes back to its files only, True requires its memory, None takes what it has. Raises `NotFound`, `CapabilityError`,
        or what a start raises; then it goes on as it was.
        """
        await self._around.branching.rollback(self, name_or_id, memory)

    async def fork(self, count: int, memory: bool | None = None) -> list[NodeSandbox | AgentEnvError]:
        """Starts `count` sandboxes that are what this one is now; for each either the child or why it did not start.

        With `memory` (None: where this sandbox can be written down) its processes go on in each of them, else only its files are there.
        """
        return await self._around.branching.fork(self, count, memory)

    async def replace_machine(self, running: Running, origin: Origin) -> None:
        """Puts a machine that already runs in the place of the present one, which is ended. The caller holds `transition`.

        Raises as `require_alive`, and then changes nothing.
        """
        self.require_alive()
        before, before_origin = self._running, self.origin
        self._end_watch()
        self._running, self.origin = running, origin
        self.written_down = origin.memory.ids[0] if origin.memory else None
        self.generation += 1
        if self.state == HIBERNATED:
            self._lifetime.set(self._left)
            self._rested.clear()
        self._begin_watch()
        self._enter("running")
        try:
            await before.end()
        finally:
            before_origin.release()

    async def leave_machine(self) -> None:
        """Ends the machine, of which all is on the disk. The caller holds `transition`. Raises as `require_alive`, and changes nothing."""
        self.require_alive()
        before, before_origin = self._running, self.origin
        self._end_watch()
        self._lifetime.cancel()
        self._running = replace(before, machine=NoMachine(self.id), stages=(), held=AsyncExitStack())
        self._enter(HIBERNATED)
        self._rested.set()
        try:
            await before.end()
        finally:
            before_origin.release()

    def at_rest(self, snapshot: Snapshot) -> Hibernated:
        """What is written down of it beside what `snapshot` names."""
        self._left = self._lifetime.left
        return Hibernated(self.id, self.generation, self.created, self._left, self.request, snapshot)

    async def _end(self, forgotten: bool) -> Exit:
        ended = Exit(None, None, self._reason)
        try:
            ended = await self.machine.kill()
        finally:
            # A copy of its files stops at `stopping`; only then may they go.
            async with self.transition:
                if self._ports is not None:
                    await self._ports.close()
                await self._running.held.aclose()
                self.origin.release()
                if forgotten:
                    with suppress(NotFound, InvalidState):  # another process has it
                        self._around.hibernating.forget(self.id)
            self._around.journal.forget(self.id)
            self._around.events.emit("sandbox.died" if self.failure else "sandbox.ended", id=self.id, reason=self._reason, exit=ended)
            self._exit.set_result(ended)
            self._around.on_end(self.id)
            self._rested.set()
        return ended

    def _begin_watch(self) -> None:
        machine = self.machine
        self._watch = asyncio.create_task(self._watch_death(machine))
        self._init = first_process(machine)
        self._watch_storage()

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch, self._init = None, None
        self._around.storage.remove(self.id)

    async def _watch_death(self, machine: Machine) -> None:
        ended = await machine.wait()
        reason = killed_from_outside(self.directory) or ended.reason
        self.begin_end(reason, SandboxDied(self.id, reason, evidence=ended.evidence))

    @property
    def _upper(self) -> Path:
        return self.directory / "upper"

    def _dial(self, port: int) -> socket.socket:
        return dial(self.machine.dial(), port, pass_descriptor=self.machine.passes_descriptors)

    def _watch_storage(self) -> None:
        limit = self.request.resources.storage
        # A disk is as large as it may be, so nothing can outgrow it.
        if limit is not None and not self._running.capabilities.disk_image:
            self._around.storage.add(self.id, self._upper, limit, self._policy.exceeded, self._processes)
            self._around.storage.start()

    def _processes(self) -> list[int]:
        """Its processes but the first, the agent, which only writes what the owner has it write."""
        machine = self.machine
        return [pid for pid in machine.processes() if pid != machine.pid] if isinstance(machine, HasProcess) else []

    def _end_for_storage(self, failure: StorageFull) -> None:
        self.begin_end("its storage is full", failure)

    def _expire(self, seconds: float) -> None:
        self.begin_end(f"its lifetime of {seconds:g} s is over")

    def _enter(self, state: State) -> None:
        self.require_alive()
        self.state = state
        self._record()
        self._around.events.emit(f"sandbox.{'resumed' if state == 'running' else state}", id=self.id, generation=self.generation)

    def _record(self, **facts: object) -> None:
        """Tells the journal. A full disk must not keep a sandbox from being resumed or killed, so then others see an older state."""
        try:
            self._around.journal.record(
                self.id,
                state=self.state,
                generation=self.generation,
                expires=self._lifetime.expires,
                backend=self.backend,
                directory=self.directory,
                image=self.request.image,
                snapshot=self.origin.snapshot,
                layers=self.origin.below,
                metadata=dict(self.request.metadata),
                init=self._init,
                **facts,
            )
        except OSError as error:
            self._around.events.emit("node.journal_failed", id=self.id, error=str(error))
