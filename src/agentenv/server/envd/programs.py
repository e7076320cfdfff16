"""The processes of a sandbox that E2B's clients started: any number of them may watch one, and one that nobody watches runs on."""

from __future__ import annotations

import asyncio
import signal
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from agentenv.errors import LimitReached, NotFound
from agentenv.guest.errors import AgentFailure
from agentenv.guest.frames import Content, Kind
from agentenv.guest.processes import Command, Ended, Process, ProcessEntry, Tap, checked, processes
from agentenv.sandbox.link import Link

TAIL = 16 << 10
"""Bytes of the end of a process's output that are kept, to see from it which limit was reached."""

ENDS_KEPT = 64
"""How many ended processes are remembered for those who connect late."""


class Program(Process):
    """A process of which only the end of its output is kept."""

    def __init__(self, operation: str) -> None:
        super().__init__(operation, keep=0)
        self.tail = bytearray()

    def on_data(self, kind: Kind, data: Content) -> None:
        self.tail += data[-TAIL:]
        if len(self.tail) > 2 * TAIL:
            del self.tail[:-TAIL]
        super().on_data(kind, data)


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended, in the words of E2B: `exit_code` is -1 after a signal, `error` None after a good end."""

    exit_code: int
    exited: bool
    status: str
    error: str | None
    timed_out: bool = False


@dataclass(eq=False, slots=True)
class Running:
    """A process that runs, or that has: `argv`, `envs` and `cwd` as its client gave them. `input_lock` keeps writers in their order."""

    link: Link
    program: Program
    kills_before: int
    argv: tuple[str, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    tag: str | None = None
    pty: bool = False
    stdin: bool = True
    input_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    end: End | None = None

    @property
    def pid(self) -> int:
        """Its number in the sandbox."""
        return self.program.pid or 0

    async def ended(self) -> End:
        """How it ended, once its output has been read. Raises what tore it from the sandbox, if that happened."""
        if self.end is None:
            ended = checked(await asyncio.shield(self.program.finished), Ended, self.program.operation)
            self.end = await self._explained(ended)
        return self.end

    async def _explained(self, ended: Ended) -> End:
        plain = end_of(ended)
        if plain.error is None:
            return plain
        status = ended.signal if ended.signal is not None else (ended.exit_code or 0) - 128
        try:
            await self.link.check_limits(signal=status, output=self.program.tail, kills_before=self.kills_before)
        except LimitReached as limit:
            return End(plain.exit_code, plain.exited, plain.status, str(limit), plain.timed_out)
        return plain


def end_of(ended: Ended) -> End:
    """The end of a process as Go's os/exec would tell it, which is what E2B's clients show."""
    if ended.signal is not None:
        status = f"signal: {(signal.strsignal(ended.signal) or str(ended.signal)).lower()}"
        return End(-1, False, status, status, ended.timed_out is not None)
    code = ended.exit_code or 0
    status = f"exit status {code}"
    return End(code, True, status, status if code else None, ended.timed_out is not None)


class Programs:
    """All of them, by number."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._running: dict[int, Running] = {}
        self._ended: OrderedDict[int, Running] = OrderedDict()

    async def start(self, command: Command, running: Running) -> Tap:
        """Starts `command` as `running.program`; returns all that it prints. Raises `AgentFailure`, `InfrastructureError`."""
        program = running.program
        tap = program.tap()
        self._link.connection().start(program, "exec", command.parameters())
        try:
            self._remember(await program.started(), running)
        except asyncio.CancelledError:
            program.cancel()
            raise
        return tap

    async def find(self, *, pid: int | None = None, tag: str | None = None) -> Running:
        """The process with that number, or with that tag: one that runs or has ended lately. Raises `NotFound`."""
        if pid is None:
            pid = await self._tagged(tag or "")
        found = self._running.get(pid) or self._ended.get(pid)
        return found if found is not None else await self._attach(pid)

    async def list(self) -> list[Running | ProcessEntry]:
        """Those that run: as they were started here, or as the sandbox tells of those that were started otherwise."""
        return [self._running.get(entry.pid, entry) for entry in await processes(self._link.connection())]

    async def _tagged(self, tag: str) -> int:
        for running in [*self._running.values(), *reversed(self._ended.values())]:
            if running.tag == tag:
                return running.pid
        for entry in await processes(self._link.connection()):
            if entry.tag == tag:
                return entry.pid
        raise NotFound(f"process with tag {tag} not found")

    async def _attach(self, pid: int) -> Running:
        """One that this server did not start: before it was itself started again, or by another way than E2B's."""
        entry = next((entry for entry in await processes(self._link.connection()) if entry.pid == pid), None)
        program = Program("attach")
        self._link.connection().start(program, "attach", {"pid": pid})
        try:
            await program.started()
        except AgentFailure as failure:
            raise NotFound(f"process with pid {pid} not found") from failure
        running = Running(self._link, program, self._link.kills_seen)
        if entry is not None:
            running.argv, running.cwd, running.tag, running.pty = entry.argv, entry.cwd, entry.tag, entry.pty
        self._remember(pid, running)
        return running

    def _remember(self, pid: int, running: Running) -> None:
        self._ended.pop(pid, None)
        if running.tag is not None:
            for other in [number for number, ended in self._ended.items() if ended.tag == running.tag]:
                del self._ended[other]
        self._running[pid] = running
        running.program.finished.add_done_callback(lambda finished: self._finish(pid, running, failed=finished.exception() is not None))

    def _finish(self, pid: int, running: Running, *, failed: bool) -> None:
        if self._running.get(pid) is not running:
            return
        del self._running[pid]
        if not failed:
            self._ended[pid] = running
            while len(self._ended) > ENDS_KEPT:
                self._ended.popitem(last=False)


async def pieces(tap: Tap, interval: float) -> AsyncIterator[tuple[Kind, bytes] | None]:
    """What a process prints, to its end; None whenever it printed nothing for `interval` seconds."""
    while True:
        try:
            async with asyncio.timeout(interval):
                piece = await tap.next()
        except TimeoutError:
            yield None
            continue
        if piece is None:
            return
        yield piece
