"""The namespace backend: a sandbox is a process tree in namespaces of its own, on an overlay of its own, behind seccomp and Landlock."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from agentenv.errors import InfrastructureError, InvalidState, Stage
from agentenv.isolation.attempt import Attempt
from agentenv.isolation.contract import MachineSpec, Probe
from agentenv.isolation.namespace import endpoint, plan
from agentenv.isolation.namespace.cgroups import CgroupTree, group_name
from agentenv.isolation.namespace.disks import limit_disks
from agentenv.isolation.namespace.file_size import limit_file_size
from agentenv.isolation.namespace.inodes import spread
from agentenv.isolation.namespace.launcher import Launch, Launcher, readable
from agentenv.isolation.namespace.machine import NamespaceMachine
from agentenv.isolation.namespace.probing import launcher_command, probe
from agentenv.isolation.namespace.seccomp import compile_filter
from agentenv.isolation.namespace.warm_groups import WarmGroups


class NamespaceBackend:
    """Starts sandboxes for one owner process, whose directory gives the cgroups their owner's name. Made by `open`."""

    name = "namespace"

    def __init__(self, owner_dir: Path, launcher: Launcher, cgroups: CgroupTree) -> None:
        self._owner_dir = owner_dir
        self._launcher = launcher
        self._can_freeze = cgroups.can_freeze
        self._groups = WarmGroups(cgroups, owner_dir.name)
        self._cgroups = cgroups
        self._numbers = itertools.count(1)
        self._reopening = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(cls, owner_dir: Path) -> NamespaceBackend:
        """Starts the launcher. Raises `BackendUnavailable` where the machine does not allow what it needs."""
        spread(owner_dir)
        cgroups = CgroupTree.discover()
        backend = cls(owner_dir, await open_launcher(owner_dir, cgroups), cgroups)
        backend._groups.add_one()
        return backend

    def probe(self) -> Probe:
        """What this machine allows, tried out in the owner's directory."""
        return probe(self._owner_dir)

    async def start(self, spec: MachineSpec) -> NamespaceMachine:
        """Starts a sandbox; on any failure nothing of it is left. Raises `StartupTimeout`, `InfrastructureError`."""
        attempt = Attempt("Sandbox")
        async with AsyncExitStack() as held, attempt.within(spec.timeouts.startup):
            return await self._start(spec, attempt, held)

    async def close(self) -> None:
        """Ends every sandbox and the launcher. Idempotent."""
        self._closed = True
        await self._launcher.close()
        self._groups.close()

    async def _start(self, spec: MachineSpec, attempt: Attempt, held: AsyncExitStack) -> NamespaceMachine:
        launcher = self._launcher if self._launcher.alive else await self._reopen()
        listener = held.enter_context(endpoint.listen(spec.directory))
        log = endpoint.open_log()
        held.callback(os.close, log)
        attempt.printed = partial(endpoint.read_log, log)
        attempt.enter("cgroup")
        cgroup = self._groups.take()
        held.callback(cgroup.remove)
        cgroup.apply(spec.resources)
        attempt.enter("launch")
        connection = held.enter_context(endpoint.connect(spec.directory))
        connection.setblocking(False)
        key = f"{spec.id}.{next(self._numbers)}"
        launch = launcher.launch(key, plan.records(spec, cgroup), (listener.fileno(), log))
        held.push_async_callback(_abandon, launcher, key, launch)
        listener.close()
        started = await launch.started
        limit_file_size(started.pid, spec.resources)
        limit_disks(cgroup, spec, spec.resources)
        attempt.enter("agent")
        await _hello(connection, launch, log)
        machine = NamespaceMachine(
            spec,
            key=key,
            launcher=launcher,
            launch=launch,
            started=started,
            cgroup=cgroup,
            can_freeze=self._can_freeze,
            log=log,
            connection=connection,
            stages=_in_parts(attempt.finish(), started.stages),
            on_end=self._groups.add_one,
        )
        held.pop_all()
        return machine

    async def _reopen(self) -> Launcher:
        """A launcher that was ended from outside took its sandboxes with it; the next ones get a new one."""
        async with self._reopening:
            if self._closed:
                raise InvalidState("this backend is closed.")
            if not self._launcher.alive:
                await self._launcher.close()
                self._launcher = await open_launcher(self._owner_dir, self._cgroups)
        return self._launcher


def _in_parts(stages: tuple[Stage, ...], launched: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages with "launch" told in the parts as well that the launcher reported."""
    parts = tuple(Stage(f"launch.{part.name}", part.seconds) for part in launched)
    return tuple(stage for done in stages for stage in ((done, *parts) if done.name == "launch" else (done,)))


async def open_launcher(owner_dir: Path, cgroups: CgroupTree) -> Launcher:
    """The daemon for this owner. Without a cgroup for the processor a sandbox's choice of cores is its limit, so it may not change it."""
    pin_cores = "cpu" not in cgroups.controllers
    ours = group_name(owner_dir.name, "x").removesuffix("x")
    sweeps = [word for hierarchy in cgroups.hierarchies for word in ("--sweep", f"{hierarchy.base}/{ours}")]
    return await Launcher.open([*launcher_command(), *sweeps], compile_filter(pin_cores=pin_cores), owner_dir / "launcher.log")


async def _abandon(launcher: Launcher, key: str, launch: Launch) -> None:
    """Ends a sandbox whose start failed or was given up, and waits until it is gone."""
    launcher.kill(key)
    await asyncio.shield(launch.ended)
    if not launch.started.cancelled() and launch.started.exception() is None:
        os.close(launch.started.result().pidfd)


async def _hello(connection: socket.socket, launch: Launch, log: int) -> None:
    """Returns when the agent has sent its first byte, which stays in `connection`. Raises `InfrastructureError` when it ended instead."""
    await readable(asyncio.get_running_loop(), connection.fileno())
    try:
        alive = connection.recv(1, socket.MSG_PEEK)
    except ConnectionError:
        alive = b""
    if not alive:
        how = await asyncio.shield(launch.ended)
        ended = f"status {how.exit_code}" if how.exit_code is not None else f"signal {how.signal}"
        output = endpoint.read_log(log).strip() or "nothing"
        raise InfrastructureError(f"the sandbox's agent ended with {ended} before it answered; it had printed: {output}")
