"""One running sandbox of the gVisor backend."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agentenv.errors import InfrastructureError, InvalidState, SandboxDied, Stage
from agentenv.isolation.contract import Exit, MachineSpec, OomKill, Resources, Usage
from agentenv.isolation.gvisor import uplink
from agentenv.isolation.gvisor.bundle import Bundle
from agentenv.isolation.gvisor.checkpoint import write_facts
from agentenv.isolation.gvisor.control import Known, ask
from agentenv.isolation.gvisor.limits import OWN_MEMORY, applied, limit_processes, without_own_memory
from agentenv.isolation.gvisor.runsc import Runsc
from agentenv.isolation.gvisor.strays import end_strays
from agentenv.isolation.gvisor.switchboard import Line, Switchboard
from agentenv.isolation.namespace import endpoint
from agentenv.isolation.namespace.agent_call import call
from agentenv.isolation.namespace.cgroups import Cgroup
from agentenv.isolation.namespace.disks import limit_disks
from agentenv.isolation.vm.network import GuestLink
from agentenv.monitoring.logs import logger

_ANSWER_SECONDS = 10.0
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """What a machine is made of and frees at its end. `process` is the host's process that is its kernel, `pidfd` the means to watch it,
    `link` what its agent is told of its network."""

    spec: MachineSpec
    bundle: Bundle
    runsc: Runsc
    board: Switchboard
    line: Line
    cgroup: Cgroup
    process: Known
    pidfd: int
    log: int
    link: GuestLink | None


class GvisorMachine:
    """A sandbox with a kernel of its own, reached through the unix socket in its directory. Made by `GvisorBackend`."""

    passes_descriptors = False

    def __init__(
        self, held: Held, stages: tuple[Stage, ...], on_end: Callable[[GvisorMachine, asyncio.Future[InfrastructureError | None]], None]
    ) -> None:
        """Takes over all in `held`. `on_end` is called once, when the machine has ended, with what is done when all is free."""
        self.stages = stages
        self._held = held
        self._spec = held.spec
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[Exit] = self._loop.create_future()
        self._freeing: asyncio.Future[InfrastructureError | None] | None = None
        self._paused = False
        self._killed = False
        self._loop.add_reader(held.pidfd, self._settle)

    @property
    def id(self) -> str:
        """The id that the machine was asked for with."""
        return self._spec.id

    @property
    def directory(self) -> Path:
        """The machine's own directory, with its `upper/` and its `agent.sock`."""
        return self._spec.directory

    @property
    def pid(self) -> int:
        """The host's number of the process that is the sandbox's kernel."""
        return self._held.process.sandbox.pid

    def dial(self) -> socket.socket:
        """A fresh blocking connection to the agent. Raises `SandboxDied`."""
        self._check()
        try:
            return endpoint.connect(self._spec.directory)
        except OSError as error:
            raise SandboxDied(self.id, f"its agent cannot be reached ({error.strerror})", evidence=self._evidence()) from error

    async def pause(self) -> None:
        """Stops every process of the sandbox; its kernel goes on and can be asked for a checkpoint."""
        self._check()
        if not self._paused:
            if self._held.link is not None:
                await asyncio.to_thread(uplink.take_down, self.dial())
            await self._ask_kernel("Pause")
            self._paused = True

    async def resume(self) -> None:
        """Lets every process go on; connections to the outside, too."""
        self._check()
        if self._paused:
            await self._ask_kernel("Resume")
            self._paused = False
        if self._held.link is not None:
            await asyncio.to_thread(uplink.bring_up, self.dial(), self._held.link)

    async def checkpoint(self, directory: Path, parent: Path | None = None) -> None:
        """Writes memory and state of the paused machine into the empty `directory`. gVisor writes all of it, whatever the `parent`.

        Raises `InvalidState` when it runs, `InfrastructureError` for what gVisor cannot write (a file that is open and removed, say); then
        `directory` is empty again, and the machine goes on when it is resumed.
        """
        self._check()
        if not self._paused:
            raise InvalidState(f"sandbox {self.id} runs; a checkpoint is taken of a paused one.")
        try:
            stream = await asyncio.wrap_future(self._held.board.capture(self._held.line))
            await asyncio.to_thread(self._write_checkpoint, directory)
            network = self._held.link is not None
            version, agent = self._held.runsc.version, self._held.bundle.agent
            await asyncio.to_thread(write_facts, directory, version, stream, network=network, agent=agent)
        except BaseException:
            await asyncio.to_thread(_empty, directory)
            raise

    async def resize(self, resources: Resources) -> None:
        """Changes limits of the live sandbox. Raises `CapabilityError`, `InvalidState`, `InfrastructureError`, `SandboxDied`."""
        self._check()
        wanted = self._spec.resources.changed_by(resources)
        if resources.limits_disks:
            await asyncio.to_thread(limit_disks, self._held.cgroup, self._spec, wanted, writes_directly=False)
        await asyncio.to_thread(self._held.cgroup.apply, applied(resources))
        if resources.pids is not None:
            await limit_processes(self.directory, resources.pids)
        self._spec = replace(self._spec, resources=wanted)

    async def usage(self) -> Usage:
        """What the cgroup accounts of the sandbox and its kernel together; its processes are counted by the agent, while it runs."""
        self._check()
        usage = without_own_memory(self._held.cgroup.usage())
        if self._paused:
            return replace(usage, processes=None)
        told = await asyncio.to_thread(call, self.dial(), "stats", timeout=_ANSWER_SECONDS)
        return replace(usage, processes=told.get("threads"), cpu_seconds=usage.cpu_seconds or told.get("cpu_seconds"))

    async def oom_kills(self) -> tuple[OomKill, ...]:
        """Out-of-memory kills so far; each of them ended the sandbox, whose memory is one process's."""
        self._check()
        return self._oom_kills()

    async def process_limit_hits(self) -> int:
        """Always 0: gVisor refuses a fork beyond `pids` and counts no refusals."""
        self._check()
        return 0

    async def kill(self) -> Exit:
        """Ends the sandbox whatever state it is in. Idempotent.

        Nothing of it runs any more when this returns. The kernel takes most of a second to clear such a process away; `freed` waits for it.
        """
        if not self._exit.done():
            self._killed = True
            await asyncio.to_thread(self._kill_processes)
            self._settle()
        return self._exit.result()

    async def wait(self) -> Exit:
        """Returns when the sandbox has ended by whatever cause."""
        return await asyncio.shield(self._exit)

    async def freed(self) -> None:
        """Returns when the machine has ended and the kernel has freed all that it held. Raises `InfrastructureError` when it cannot."""
        await self.wait()
        assert self._freeing is not None
        problem = await asyncio.shield(self._freeing)
        if problem is not None:
            raise problem

    def _kill_processes(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._held.pidfd, signal.SIGKILL)
        self._held.cgroup.kill()
        if not self._held.cgroup.procs_files:
            end_strays(self._held.bundle.state)

    def _settle(self) -> None:
        """Once the machine has ended, or certainly will: takes the evidence and begins to free what was held."""
        if self._exit.done():
            return
        self._loop.remove_reader(self._held.pidfd)
        evidence = self._evidence()
        number = signal.SIGKILL if self._killed or evidence["oom_kills"] else None
        self._exit.set_result(Exit(None, number, self._reason(evidence), evidence))
        # Not a task: a loop that ends cancels those before it lets anybody wait for them.
        self._freeing = self._loop.run_in_executor(None, self._free)
        self._on_end(self, self._freeing)

    def _reason(self, evidence: Mapping[str, object]) -> str:
        if self._killed:
            return "it was killed"
        return "it was ended for want of memory" if evidence["oom_kills"] else "its agent ended"

    def _free(self) -> InfrastructureError | None:
        """In a thread. What could not be freed is told, and found by the next start of a node."""
        self._held.board.detach(self._held.line).result()
        try:
            self._held.cgroup.remove()
            wait_for_end(self._held.pidfd)
        except InfrastructureError as error:
            _log.warning("machine.left", id=self.id, error=str(error))
            return error
        finally:
            os.close(self._held.pidfd)
            os.close(self._held.log)
            # Where a path in the machine's directory would be too long, runsc puts it elsewhere.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._held.process.sandbox.control_socket_path)  # noqa: PTH108
        return None

    def _check(self) -> None:
        if self._exit.done():
            ended = self._exit.result()
            raise SandboxDied(self.id, ended.reason, evidence=ended.evidence)

    async def _ask_kernel(self, method: str) -> None:
        address = self._held.process.sandbox.control_socket_path
        await asyncio.to_thread(ask, address, method, timeout=_ANSWER_SECONDS)

    def _write_checkpoint(self, directory: Path) -> None:
        words = ("checkpoint", "--compression=none", "--leave-running", f"--image-path={directory}", self.id)
        self._held.runsc.call(self._held.bundle.state, *words, what=f"the checkpoint of sandbox {self.id}")

    def _oom_kills(self) -> tuple[OomKill, ...]:
        return tuple(replace(kill, limit=max(0, kill.limit - OWN_MEMORY)) for kill in self._held.cgroup.oom_kills())

    def _evidence(self) -> Mapping[str, object]:
        return {"oom_kills": self._oom_kills(), "last_output": endpoint.read_log(self._held.log)}


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def wait_for_end(pidfd: int, timeout: float = 10.0) -> None:
    """Returns when the process has ended. Raises `InfrastructureError` after `timeout` seconds."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if not poller.poll(timeout * 1000):
        raise InfrastructureError(f"a sandbox has not ended {timeout:g} s after it was killed.", remedy="See `dmesg` for a hanging disk.")
