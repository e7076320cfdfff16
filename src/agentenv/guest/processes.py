"""Processes in a sandbox: starting them, what they print, how they end.

What a process prints is always taken in at once, so that it never blocks on a host that is not looking; at most `keep` bytes stay.
Whoever wants to see it live attaches a `Tap`; a tap that lags far behind slows the process down instead of filling the host's memory.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from agentenv.errors import ProtocolError
from agentenv.guest.connection import Connection
from agentenv.guest.errors import AgentFailure
from agentenv.guest.frames import Content, Kind
from agentenv.guest.stream import Stream

_KILL = 9

KEEP_OUTPUT = 64 << 20
"""How many bytes of a process's output are kept by default; what it prints beyond is passed to taps and then dropped."""

TAP_BACKLOG = 4 << 20
"""Bytes of memory that a tap may lag behind before the process is slowed down."""

PIECE_COST = 64
"""What a piece costs beyond its content, so that a flood of tiny pieces counts for what it is."""


class Ended(msgspec.Struct, frozen=True):
    """How a process ended, in the words of the protocol: durations in seconds, `max_rss` in bytes.

    `oom_kills` is how many processes of the whole machine the kernel ended for want of memory meanwhile, as far as the agent is told.
    """

    exit_code: int | None
    signal: int | None
    timed_out: Literal["wall", "idle"] | None
    wall: float
    user: float
    system: float
    max_rss: int
    oom_kills: int = 0


class ProcessEntry(msgspec.Struct, frozen=True):
    """A running process that was started by `exec`; `started` is unix time in seconds."""

    pid: int
    argv: tuple[str, ...]
    cwd: str | None = None
    user: str | None = None
    tag: str | None = None
    pty: bool = False
    started: float = 0.0


Answer = TypeVar("Answer")


def checked(answer: object, shape: type[Answer], operation: str) -> Answer:
    """An answer of the agent as the struct it must be; `ProtocolError` for any other."""
    try:
        return msgspec.convert(answer, shape, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the agent's answer to {operation!r} is not what the protocol says: {error}.") from error


@dataclass(frozen=True, slots=True)
class Command:
    """What to run: either `argv` or `shell` (a line for the sandbox's shell). Durations in seconds."""

    argv: Sequence[str] | None = None
    shell: str | None = None
    login: bool = False
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    user: str | int | None = None
    stdin: bool = False
    pty: tuple[int, int] | None = None
    timeout: float | None = None
    idle_timeout: float | None = None
    keep: bool = False
    tag: str | None = None

    def parameters(self) -> dict[str, Any]:
        """The body of the OPEN frame."""
        return {
            "argv": self.argv,
            "shell": self.shell,
            "login": self.login if self.shell is not None else None,
            "env": self.env or None,
            "cwd": self.cwd,
            "user": self.user,
            "stdin": self.stdin or None,
            "pty": {"rows": self.pty[0], "cols": self.pty[1]} if self.pty else None,
            "timeout": self.timeout,
            "idle_timeout": self.idle_timeout,
            "keep": self.keep or None,
            "tag": self.tag,
        }


class Tap:
    """A live view of a process's output, from the first byte still kept. Ends with the process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._pieces: deque[tuple[Kind, bytes]] = deque()
        self.backlog = 0
        self._arrival: asyncio.Future[None] | None = None

    def put(self, kind: Kind, piece: bytes) -> None:
        """Adds a piece (called by the process)."""
        self._pieces.append((kind, piece))
        self.backlog += len(piece) + PIECE_COST
        self.tell()

    def tell(self) -> None:
        """Wakes the reader (called by the process)."""
        arrival, self._arrival = self._arrival, None
        if arrival is not None and not arrival.done():
            arrival.set_result(None)

    async def next(self) -> tuple[Kind, bytes] | None:
        """The next piece of output (DATA is stdout or the terminal, DATA_ERR stderr), None when the process has ended and all was read."""
        while not self._pieces:
            if self._process.over:
                return None
            self._arrival = self._arrival or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._arrival)
        kind, piece = self._pieces.popleft()
        self.backlog -= len(piece) + PIECE_COST
        self._process.settle()
        return kind, piece


class Launched(Stream):
    """The stream of a process: first the agent says that it runs, at last how it ended."""

    def __init__(self, operation: str) -> None:
        super().__init__(operation)
        self.pid: int | None = None
        self._started: asyncio.Future[None] | None = None

    def on_event(self, event: str, body: dict[str, Any]) -> None:
        pid = body.get("pid")
        if event != "started" or type(pid) is not int or self.pid is not None:
            raise ProtocolError(f"the agent sent the event {body!r} in answer to {self.operation!r}.")
        self.pid = pid
        self._tell_started()

    def on_finished(self) -> None:
        self._tell_started()

    async def started(self) -> int:
        """Waits until the process runs; returns its pid in the sandbox. Raises what prevented it."""
        while self.pid is None and not self.over:
            self._started = self._started or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._started)
        if self.pid is None:
            await self.result()
            raise ProtocolError("the agent ended a process that it had never started.")
        return self.pid

    async def run(self) -> Ended:
        """Waits for the end; a cancelled waiter ends the process."""
        return checked(await self.result(), Ended, self.operation)

    def signal(self, number: int) -> None:
        """Sends a signal to the process group."""
        self.call(signal=number)

    def _tell_started(self) -> None:
        if self._started is not None and not self._started.done():
            self._started.set_result(None)


class Process(Launched):
    """A process in the sandbox whose output is kept."""

    def __init__(self, operation: str, *, keep: int = KEEP_OUTPUT) -> None:
        super().__init__(operation)
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.dropped = 0
        """Bytes printed beyond what is kept."""
        self._room = keep
        self._owed = 0
        self._taps: weakref.WeakSet[Tap] | None = None
        self._waiting = 0

    def on_data(self, kind: Kind, data: Content) -> None:
        kept = self.stdout if kind is Kind.DATA else self.stderr
        if len(data) <= self._room:
            kept += data
            self._room -= len(data)
        else:
            kept += data[: self._room]
            self.dropped += len(data) - self._room
            self._room = 0
        self._owed += len(data)
        if self._taps:
            piece = bytes(data)
            for tap in self._taps:
                tap.put(kind, piece)
        self.settle()

    def on_finished(self) -> None:
        super().on_finished()
        if self._taps:
            for tap in self._taps:
                tap.tell()

    def settle(self) -> None:
        """Lets the process print on, unless a tap lags far behind. A caller that waits for the end does not read, so then no tap counts."""
        if self._owed and (self._waiting or not self._taps or all(tap.backlog < TAP_BACKLOG for tap in self._taps)):
            owed, self._owed = self._owed, 0
            self.consumed(owed)

    def tap(self) -> Tap:
        """A new live view, which also begins with what was kept so far."""
        tap = Tap(self)
        for kind, kept in ((Kind.DATA, self.stdout), (Kind.DATA_ERR, self.stderr)):
            if kept:
                tap.put(kind, bytes(kept))
        self._taps = self._taps or weakref.WeakSet()
        self._taps.add(tap)
        return tap

    async def ended(self) -> Ended:
        """Waits for the end without a hold on the process: a cancelled waiter leaves it running."""
        self._waiting += 1
        try:
            self.settle()
            return checked(await asyncio.shield(self.finished), Ended, self.operation)
        finally:
            self._waiting -= 1

    def resize(self, rows: int, cols: int) -> None:
        """Tells a process on a terminal its new size."""
        self.call(resize=[rows, cols])


def start(connection: Connection, command: Command, *, keep: int = KEEP_OUTPUT) -> Process:
    """Starts a process; `Process.started()` and the result tell whether that worked."""
    process = Process("exec", keep=keep)
    connection.start(process, "exec", command.parameters())
    return process


def attach(connection: Connection, pid: int, *, keep: int = KEEP_OUTPUT) -> Process:
    """Takes over the live output of a process that was started with `keep`."""
    process = Process("attach", keep=keep)
    connection.start(process, "attach", {"pid": pid})
    return process


async def processes(connection: Connection) -> tuple[ProcessEntry, ...]:
    """The running processes that `exec` started."""
    answer = await connection.call("processes")
    return checked(answer.get("processes"), tuple[ProcessEntry, ...], "processes")


async def end_session(connection: Connection, pid: int) -> None:
    """Ends with SIGKILL all that the command `pid` has left behind in its session, also when it has ended itself."""
    await connection.call("signal", pid=pid, signal=_KILL, session=True)


async def signal(connection: Connection, pid: int, number: int) -> bool:
    """Sends a signal to a process group; False when there is no such process."""
    try:
        await connection.call("signal", pid=pid, signal=number)
    except AgentFailure as failure:
        if failure.code == "ESRCH":
            return False
        raise
    return True
