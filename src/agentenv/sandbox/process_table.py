"""The processes that a handle has started or attached to, by their number in the sandbox: what commands and terminals have in common."""

from __future__ import annotations

from agentenv.errors import InfrastructureError, NotFound
from agentenv.guest import processes
from agentenv.guest.errors import AgentFailure
from agentenv.guest.processes import Command, Process
from agentenv.sandbox.command_handle import Running
from agentenv.sandbox.link import Link


class ProcessTable:
    """Starts processes and finds them again."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._known: dict[int, Running] = {}

    def start(self, command: Command, title: str) -> Running:
        """Sends a command off; nothing is waited for."""
        process = processes.start(self.link.connection(), command)
        return Running(self.link, process, title, command.timeout, command.idle_timeout, self.link.kills_seen, self.link.host.generation)

    async def start_in_background(self, command: Command, title: str, stdin: bytes | None = None) -> Running:
        """Starts a command and returns once it runs. Raises `AgentFailure` when it cannot be started, `ConnectionLost`."""
        running = self.start(command, title)
        await running.process.started()
        self._remember(running)
        if stdin is not None:
            await feed(running.process, stdin)
        return running

    async def attach(self, pid: int) -> Running:
        """Takes over the live output of a process in the background. Raises `NotFound`."""
        process = processes.attach(self.link.connection(), pid)
        try:
            await process.started()
        except AgentFailure as failure:
            raise NotFound(f"sandbox {self.link.host.id} has no process {pid} in the background.") from failure
        except (InfrastructureError, OSError) as error:
            raise await self.link.explain(error) from error
        running = Running(self.link, process, f"process {pid}", None, None, self.link.kills_seen, self.link.host.generation)
        self._remember(running)
        return running

    async def reach(self, pid: int) -> Process:
        """A stream to a process in the background: the one that is open already, or a new one. Raises `NotFound`."""
        running = self._known.get(pid)
        if running is None or running.process.over:
            running = await self.attach(pid)
        return running.process

    def _remember(self, running: Running) -> None:
        pid, process = running.process.pid, running.process
        if pid is not None and not process.over:
            self._known[pid] = running
            process.finished.add_done_callback(lambda _: self._known.pop(pid, None))


async def feed(process: Process, stdin: bytes) -> None:
    """Sends all of a process's standard input and ends it."""
    await process.send(stdin)
    process.end()
