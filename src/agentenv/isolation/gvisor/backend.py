"""The gVisor backend: a sandbox's system calls are answered by a kernel in user space that is its own."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from agentenv.errors import InfrastructureError, InvalidState
from agentenv.isolation.attempt import Attempt
from agentenv.isolation.contract import MachineSpec, Probe
from agentenv.isolation.gvisor import bundle as bundles
from agentenv.isolation.gvisor import control, uplink
from agentenv.isolation.gvisor.affinity import release
from agentenv.isolation.gvisor.birth import Birth
from agentenv.isolation.gvisor.bundle import Bundle
from agentenv.isolation.gvisor.checkpoint import AGENT, read_facts
from agentenv.isolation.gvisor.limits import applied, limit_processes
from agentenv.isolation.gvisor.machine import GvisorMachine, Held
from agentenv.isolation.gvisor.probing import probe
from agentenv.isolation.gvisor.runsc import Runsc
from agentenv.isolation.gvisor.strays import end_strays
from agentenv.isolation.gvisor.switchboard import Line, Switchboard
from agentenv.isolation.gvisor.trunk import Carried, Trunk
from agentenv.isolation.gvisor.uplink import Uplink
from agentenv.isolation.namespace import endpoint
from agentenv.isolation.namespace.cgroups import Cgroup, CgroupTree, group_name
from agentenv.isolation.namespace.disks import limit_disks
from agentenv.isolation.namespace.inodes import spread
from agentenv.isolation.namespace.launcher import readable
from agentenv.isolation.vm.finishing import finished


@dataclass(frozen=True, slots=True)
class Origin:
    """Of a machine that goes on from a checkpoint: where the stream to its agent stood, and the program that its agent is."""

    stream: Carried
    agent: Path


class GvisorBackend:
    """Starts sandboxes for one owner process, whose directory gives the cgroups their owner's name. Made by `open`."""

    name = "gvisor"

    def __init__(self, owner_dir: Path, runsc: Runsc) -> None:
        self._owner_dir = owner_dir
        self._runsc = runsc
        self._cgroups = CgroupTree.discover()
        self._board = Switchboard.open()
        self._machines: set[GvisorMachine] = set()
        self._freeing: set[asyncio.Future[InfrastructureError | None]] = set()
        self._closed = False

    @classmethod
    async def open(cls, owner_dir: Path) -> GvisorBackend:
        """Finds runsc. Raises `BackendUnavailable` where there is none that can be used."""
        runsc = await asyncio.to_thread(Runsc.find)
        spread(owner_dir)
        return cls(owner_dir, runsc)

    def probe(self) -> Probe:
        """What this machine allows, tried out once for each version of runsc and of the kernel."""
        return probe(self._owner_dir, self._runsc, self._cgroups, GvisorBackend)

    async def start(self, spec: MachineSpec) -> GvisorMachine:
        """Starts a sandbox; on any failure nothing of it is left. Raises `StartupTimeout`, `InfrastructureError`."""
        words = ("run", "--detach", f"--bundle={Bundle(spec.directory).directory}", spec.id)
        return await self._make(spec, words)

    async def restore(self, spec: MachineSpec, checkpoint: Path) -> GvisorMachine:
        """Starts a sandbox that goes on where the checkpoint was taken; on any failure nothing of it is left.

        Raises `CapabilityError` for a checkpoint of another runsc, or of a sandbox with a network where `spec` has none, or the other way
        round; `StartupTimeout`, `InfrastructureError`.
        """
        facts = await asyncio.to_thread(read_facts, checkpoint, self._runsc.version, network=spec.network.enabled)
        words = ("restore", "--detach", f"--image-path={checkpoint}", f"--bundle={Bundle(spec.directory).directory}", spec.id)
        return await self._make(spec, words, Origin(facts.stream, checkpoint / AGENT))

    async def close(self) -> None:
        """Ends every sandbox and returns when all they held is free. Idempotent."""
        self._closed = True
        await asyncio.gather(*(machine.kill() for machine in list(self._machines)))
        while self._freeing:
            await asyncio.wait(self._freeing)
        self._board.close()

    async def _make(self, spec: MachineSpec, words: tuple[str, ...], origin: Origin | None = None) -> GvisorMachine:
        if self._closed:
            raise InvalidState("this backend is closed.")
        attempt = Attempt("Sandbox")
        async with AsyncExitStack() as held, attempt.within(spec.timeouts.startup):
            try:
                machine = await self._begin(spec, words, origin, attempt, held)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise  # whose disk is full, the node knows
                raise InfrastructureError(
                    f"sandbox {spec.id} could not be started, in stage '{attempt.stage}': {error}.", remedy="Run `agentenv doctor`."
                ) from error
            self._machines.add(machine)
            held.pop_all()
        return machine

    async def _begin(
        self, spec: MachineSpec, words: tuple[str, ...], origin: Origin | None, attempt: Attempt, held: AsyncExitStack
    ) -> GvisorMachine:
        waits = spec.network.enabled and origin is not None
        agent, netns = origin.agent if origin else None, uplink.OWN_NAMESPACE if waits else None
        bundle = await finished(lambda: bundles.write(spec, agent=agent, netns=netns))
        listener = held.enter_context(endpoint.listen(spec.directory))
        log = endpoint.open_log()
        attempt.printed = lambda: endpoint.read_log(log)
        held.callback(os.close, log)
        near, far = socket.socketpair()
        held.enter_context(near)
        held.enter_context(far)
        attempt.enter("cgroup")
        cgroup = await self._cgroup(spec, held)
        cgroup.apply(replace(applied(spec.resources), cpu=None))  # its start is not held back
        way_out = await self._way_out(spec, attempt, held) if spec.network.enabled else None
        attempt.enter("launch")
        command = self._runsc.command(bundle.state, *words, network="sandbox" if waits else "none", log=bundle.log)
        line = Line(Trunk(near, far, origin.stream if origin else None), listener)
        held.push_async_callback(self._detach, line)
        await asyncio.wrap_future(self._board.attach(line))
        frames = way_out.descriptor if way_out is not None else log
        born = asyncio.wrap_future(Birth(spec, bundle, command, cgroup.procs_files, far.fileno(), frames, log, waits).begin())
        born.add_done_callback(_look_at)
        held.push_async_callback(_abandon, born, cgroup, bundle)
        greeted = asyncio.ensure_future(asyncio.wrap_future(line.trunk.greeted))
        held.callback(greeted.cancel)
        await asyncio.wait({born, greeted}, return_when=asyncio.FIRST_COMPLETED)
        attempt.enter("agent")
        if not greeted.done():
            await asyncio.shield(born)
            await _greeting_or_end(greeted, bundle)
        if not greeted.done() or greeted.exception() is not None:
            output = endpoint.read_log(log).strip() or "nothing"
            raise InfrastructureError(f"the sandbox ended before its agent answered; it had printed: {output}")
        # The agent often answers before runsc has put its books in order, and need not wait for it.
        if spec.resources.pids is not None:
            await limit_processes(spec.directory, spec.resources.pids)
        if way_out is not None:
            await asyncio.to_thread(uplink.bring_up, endpoint.connect(spec.directory), way_out.link)
        await asyncio.shield(born)
        if way_out is not None:
            way_out.close()
        cgroup.apply(applied(spec.resources))
        limit_disks(cgroup, spec, spec.resources, writes_directly=False)
        release(cgroup)
        process = control.known(bundle.state)
        pidfd = os.pidfd_open(process.sandbox.pid)
        held.callback(os.close, pidfd)
        link = way_out.link if way_out is not None else None
        parts = Held(spec, bundle, self._runsc, self._board, line, cgroup, process, pidfd, log, link)
        return GvisorMachine(parts, attempt.finish(), self._forget)

    async def _way_out(self, spec: MachineSpec, attempt: Attempt, held: AsyncExitStack) -> Uplink:
        made: list[Uplink] = []

        def close() -> None:
            for way_out in made:
                way_out.close()

        attempt.enter("network")
        held.callback(close)
        await finished(lambda: made.append(Uplink.open(spec.network)))
        return made[0]

    async def _cgroup(self, spec: MachineSpec, held: AsyncExitStack) -> Cgroup:
        made: list[Cgroup] = []

        def remove() -> None:
            for cgroup in made:
                cgroup.remove()

        # A start that is given up while it is made waits for that, and removes it.
        held.push_async_callback(asyncio.to_thread, remove)
        await finished(lambda: made.append(self._cgroups.create(group_name(self._owner_dir.name, spec.id))))
        return made[0]

    async def _detach(self, line: Line) -> None:
        await asyncio.wrap_future(self._board.detach(line))

    def _forget(self, machine: GvisorMachine, freeing: asyncio.Future[InfrastructureError | None]) -> None:
        self._machines.discard(machine)
        self._freeing.add(freeing)
        freeing.add_done_callback(self._freeing.discard)


def _look_at(born: asyncio.Future[None]) -> None:
    """Marks a failure as seen: of a start that is given up it is the consequence of the kill, and nobody waits for it."""
    if not born.cancelled():
        born.exception()


async def _abandon(born: asyncio.Future[None], cgroup: Cgroup, bundle: Bundle) -> None:
    """Ends a sandbox whose start failed or was given up, and waits until nobody works on it any more."""
    await asyncio.to_thread(cgroup.kill)
    if not cgroup.procs_files:
        await asyncio.to_thread(end_strays, bundle.state)
    await asyncio.wait({born})


async def _greeting_or_end(greeted: asyncio.Future[None], bundle: Bundle) -> None:
    """Returns when the agent has sent its `hello`, or the sandbox has ended."""
    pidfd = os.pidfd_open(control.known(bundle.state).sandbox.pid)
    died = asyncio.ensure_future(readable(asyncio.get_running_loop(), pidfd))
    try:
        await asyncio.wait({greeted, died}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        died.cancel()
        await asyncio.wait({died})  # it watches the descriptor until then
        os.close(pidfd)
