"""A sandbox without walls: a real agent as a child process, and a host around it that does what can be done without a node."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.guest.local_agent import LocalAgent

from agentenv.errors import AgentEnvError, CapabilityError, InvalidState, SandboxDied, Stage
from agentenv.isolation.contract import Capabilities, Exit, OomKill, Resources, Usage
from agentenv.node import SandboxRequest
from agentenv.node.records import StorageKill
from agentenv.node.snapshots import Snapshot
from agentenv.sandbox.host import Host


class LocalMachine(LocalAgent):
    """The agent, with the evidence that a test wants the kernel to have."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.kills: tuple[OomKill, ...] = ()
        self.refusals = 0

    async def oom_kills(self) -> tuple[OomKill, ...]:
        return self.kills

    async def process_limit_hits(self) -> int:
        return self.refusals


class LocalHost:
    """Plays `agentenv.node.NodeSandbox`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.id = "local"
        self.generation = 1
        self.state = "running"
        self.request = SandboxRequest(resources=Resources(memory=64 << 20, storage=1 << 20, pids=10))
        self.capabilities = Capabilities(pause=True)
        self.capabilities = Capabilities(pause=True)
        self.timings = (Stage("spawn", 0.0),)
        self.failure: AgentEnvError | None = None
        self.storage_used = 0
        self.ended_writers: tuple[StorageKill, ...] = ()
        self.machine = self._start()

    def _start(self) -> LocalMachine:
        place = self._directory / str(self.generation)
        place.mkdir()
        return LocalMachine(place)

    def require_alive(self) -> None:
        if self.state == "dead":
            raise self.failure or InvalidState(f"sandbox {self.id} is gone.")

    async def pause(self, to_disk: bool = False) -> None:
        self.machine.process.send_signal(signal.SIGSTOP)
        self.state = "paused"

    async def resume(self) -> None:
        self.machine.process.send_signal(signal.SIGCONT)
        self.state = "running"

    async def resize(self, resources: Resources) -> None:
        raise CapabilityError("there are no limits here.")

    async def usage(self) -> Usage:
        return Usage(storage=self.storage_used)

    async def storage_kills(self) -> tuple[StorageKill, ...]:
        return self.ended_writers

    async def set_lifetime(self, seconds: float | None) -> None:
        raise CapabilityError("there is no lifetime here.")

    async def host_port(self, port: int) -> tuple[str, int]:
        return "127.0.0.1", port

    async def snapshot(self, name: str | None = None, memory: bool | None = None) -> Snapshot:
        raise CapabilityError("there are no snapshots here.")

    async def rollback(self, name_or_id: str, memory: bool | None = None) -> None:
        """A new generation, with the files as they are."""
        old, self.generation = self.machine, self.generation + 1
        self.machine = self._start()
        old.kill()

    async def fork(self, count: int, memory: bool | None = None) -> Sequence[Host | AgentEnvError]:
        raise CapabilityError("there are no forks here.")

    async def kill(self) -> Exit:
        if self.state != "dead":
            self.state = "dead"
            self.machine.kill()
        return Exit(None, signal.SIGKILL, "it was killed")

    async def wait(self) -> Exit:
        if self.machine.process.poll() is None:
            await _process_end(self.machine.process.pid)
        status = self.machine.process.wait()
        if self.state != "dead":
            self.state = "dead"
            self.failure = SandboxDied(self.id, f"its agent was ended by signal {-status}", evidence={"oom_kills": self.machine.kills})
        return Exit(None, -status, "dead")


async def _process_end(pid: int) -> None:
    ended = asyncio.Event()
    descriptor = os.pidfd_open(pid)
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
