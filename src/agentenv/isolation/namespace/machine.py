"""One running sandbox of the namespace backend."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from agentenv.errors import InfrastructureError, SandboxDied, Stage
from agentenv.isolation.contract import Exit, MachineSpec, OomKill, Resources, Usage
from agentenv.isolation.namespace import cgroup_files, endpoint, plan, threads
from agentenv.isolation.namespace.agent_call import call
from agentenv.isolation.namespace.cgroups import Cgroup
from agentenv.isolation.namespace.disks import limit_disks
from agentenv.isolation.namespace.file_size import limit_file_size
from agentenv.isolation.namespace.launcher import Ended, Launch, Launcher, Started

_ANSWER_SECONDS = 10.0


class NamespaceMachine:
    """A sandbox made of namespaces, reached through the unix socket in its directory. Made by `NamespaceBackend.start`."""

    passes_descriptors = True

    def __init__(
        self,
        spec: MachineSpec,
        *,
        key: str,
        launcher: Launcher,
        launch: Launch,
        started: Started,
        cgroup: Cgroup,
        can_freeze: bool,
        log: int,
        connection: socket.socket,
        stages: tuple[Stage, ...],
        on_end: Callable[[], None],
    ) -> None:
        """Takes over `started.pidfd`, `cgroup`, `log` and `connection`, on which the agent has answered; calls `on_end` at the very end."""
        self.stages = stages
        self._spec = spec
        self._key = key
        self._launcher = launcher
        self._started = started
        self._ended = launch.ended
        self._cgroup = cgroup
        self._can_freeze = can_freeze
        self._log = log
        self._first_connection: socket.socket | None = connection
        self._on_end = on_end
        self._killed = False
        self._paused = False
        self._exit: Exit | None = None
        self._ended.add_done_callback(lambda _: self._settle())

    @property
    def id(self) -> str:
        """The id that the machine was asked for with."""
        return self._spec.id

    @property
    def pid(self) -> int:
        """The host's number of the sandbox's first process."""
        return self._started.pid

    def processes(self) -> tuple[int, ...]:
        """The host's numbers of its processes: as its cgroup tells, or where there is none its pid namespace."""
        for file in self._cgroup.procs_files:
            if found := cgroup_files.read_processes(str(file)):
                return found
        return tuple(threads.members(self.pid))

    def dial(self) -> socket.socket:
        """A fresh blocking connection to the agent. Raises `SandboxDied`."""
        self._check()
        connection, self._first_connection = self._first_connection, None
        if connection is not None:
            connection.setblocking(True)
            return connection
        try:
            return endpoint.connect(self._spec.directory)
        except OSError as error:
            raise SandboxDied(self.id, f"its agent cannot be reached ({error.strerror})", evidence=self._evidence()) from error

    def network_namespace(self) -> int:
        """A descriptor of its network namespace, which the caller closes. Raises `SandboxDied`."""
        self._check()
        try:
            descriptor = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SandboxDied(self.id, "its first process is gone", evidence=self._evidence()) from error
        try:
            # The number may be another process's by now: not as long as the first process can be signalled.
            signal.pidfd_send_signal(self._started.pidfd, 0)
        except ProcessLookupError as error:
            os.close(descriptor)
            raise SandboxDied(self.id, "its first process is gone", evidence=self._evidence()) from error
        return descriptor

    async def pause(self) -> None:
        """Stops every process: by the cgroup freezer, or where there is none by the agent, which then alone goes on running."""
        self._check()
        self._paused = True
        if self._can_freeze:
            await asyncio.to_thread(self._cgroup.freeze)
        else:
            await self._ask("stop_all")
            await asyncio.to_thread(threads.wait_until_stopped, self.pid, _ANSWER_SECONDS)

    async def resume(self) -> None:
        """Lets every process go on."""
        self._check()
        if self._can_freeze:
            self._cgroup.thaw()
        else:
            await self._ask("continue_all")
        self._paused = False

    async def resize(self, resources: Resources) -> None:
        """Changes limits of the live sandbox and what it is shown of them.

        Raises `InvalidState`, `CapabilityError`, `InfrastructureError`, `SandboxDied`.
        """
        self._check()
        await asyncio.to_thread(self._cgroup.apply, resources)
        if resources.cpu is not None:
            chosen = await self._launcher.choose_cores(self._key, plan.cores(resources.cpu))
            await asyncio.to_thread(threads.move_sandbox, self.pid, chosen)
        shown = {"memory": resources.memory, "cpus": plan.cores(resources.cpu) or None}
        limits = {name: value for name, value in shown.items() if value is not None}
        if limits:
            await self._ask("configure", limits=limits)
        wanted = self._spec.resources.changed_by(resources)
        if resources.limits_disks:
            await asyncio.to_thread(limit_disks, self._cgroup, self._spec, wanted)
        self._spec = replace(self._spec, resources=wanted)
        limit_file_size(self.pid, wanted)

    async def usage(self) -> Usage:
        """What the cgroup accounts; where none does, the processes and their processor time that the agent adds up."""
        self._check()
        usage = self._cgroup.usage()
        if usage.processes is not None or self._paused:
            return usage
        told = await self._ask("stats")
        return replace(usage, cpu_seconds=told.get("cpu_seconds"), processes=told.get("threads"))

    async def oom_kills(self) -> tuple[OomKill, ...]:
        """Out-of-memory kills so far, the oldest first."""
        self._check()
        return self._cgroup.oom_kills()

    async def process_limit_hits(self) -> int:
        """How often a fork was refused."""
        self._check()
        return self._cgroup.process_limit_hits()

    async def kill(self) -> Exit:
        """Ends the sandbox whatever state it is in and frees what it held. Idempotent.

        Raises `InfrastructureError` when the kernel has not ended it after `timeouts.shutdown` seconds (a process stuck in a disk wait).
        """
        if not self._ended.done():
            self._killed = True
            self._kill_processes()
        allowed = self._spec.timeouts.shutdown
        try:
            async with asyncio.timeout(allowed):
                await asyncio.shield(self._ended)
        except TimeoutError as error:
            raise InfrastructureError(
                f"sandbox {self.id} has not ended {allowed:g} s after it was killed: a process waits in the kernel.",
                remedy="Raise `timeouts.shutdown`, or see `dmesg` for a disk that does not answer.",
            ) from error
        return self._settle()

    async def wait(self) -> Exit:
        """Returns when the sandbox has ended by whatever cause, and all it held is free."""
        await asyncio.shield(self._ended)
        return self._settle()

    def _kill_processes(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._started.pidfd, signal.SIGKILL)
        self._cgroup.kill()

    def _check(self) -> None:
        if self._ended.done():
            ended = self._settle()
            raise SandboxDied(self.id, ended.reason, evidence=ended.evidence)

    async def _ask(self, op: str, **parameters: Any) -> dict[str, Any]:
        connection = self.dial()
        return await asyncio.to_thread(call, connection, op, timeout=_ANSWER_SECONDS, **parameters)

    def _settle(self) -> Exit:
        """Once the sandbox has ended: takes the evidence, frees what was held. Called again, it says the same."""
        if self._exit is not None:
            return self._exit
        how = self._ended.result()
        evidence = self._evidence()
        if self._first_connection is not None:
            self._first_connection.close()
        try:
            self._cgroup.remove()
        except InfrastructureError as error:
            evidence["left"] = str(error)  # the next start of a node looks for such
        os.close(self._started.pidfd)
        os.close(self._log)
        self._exit = Exit(how.exit_code, how.signal, self._reason(how, evidence), evidence)
        self._on_end()
        return self._exit

    def _evidence(self) -> dict[str, object]:
        return {"oom_kills": self._cgroup.oom_kills(), "last_output": endpoint.read_log(self._log)}

    def _reason(self, how: Ended, evidence: Mapping[str, object]) -> str:
        if self._killed:
            return "it was killed"
        if how.launcher_gone:
            return "the launcher that held it ended"
        if evidence["oom_kills"] and how.signal == signal.SIGKILL:
            return "its agent was ended for want of memory"
        return f"its agent was ended by signal {how.signal}" if how.signal else f"its agent ended with status {how.exit_code}"
