"""A command that runs in the background of a sandbox."""

from __future__ import annotations

import codecs
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentenv.errors import AgentEnvError, CommandError, CommandTimeout, InfrastructureError, ProcessLimit
from agentenv.guest.frames import Kind
from agentenv.guest.processes import Ended, Process, Tap, end_session, signal
from agentenv.sandbox.link import SIGKILL, Link
from agentenv.sandbox.results import CommandResult, OutputPiece


@dataclass(frozen=True, slots=True)
class Running:
    """A started command with what its end will be judged by."""

    link: Link
    process: Process
    title: str
    timeout: float | None
    idle_timeout: float | None
    kills_before: int
    generation: int

    async def explain(self, error: InfrastructureError | OSError) -> AgentEnvError:
        """What it means that its stream broke: the error to raise."""
        return await self.link.explain(error, self.generation)

    async def result(self, ended: Ended, *, check: bool) -> CommandResult:
        """The result of the ended command. Raises `CommandTimeout`, the limit that it hit, and with `check` `CommandError`."""
        process = self.process
        stdout, stderr = process.stdout.decode(errors="replace"), process.stderr.decode(errors="replace")
        if ended.timed_out is not None:
            seconds = (self.timeout if ended.timed_out == "wall" else self.idle_timeout) or 0.0
            raise CommandTimeout(self.title, kind=ended.timed_out, seconds=seconds, stdout=stdout, stderr=stderr)
        exit_code = ended.exit_code if ended.exit_code is not None else 128 + (ended.signal or 0)
        if exit_code or process.stderr:
            # A fork bomb may well end with 0; what it complained of tells.
            try:
                await self.link.check_limits(
                    signal=exit_code - 128, output=process.stderr or process.stdout, kills_before=self.kills_before
                )
            except ProcessLimit:
                await end_session(self.link.connection(), process.pid or 0)
                raise
        if exit_code and check:
            raise CommandError(self.title, exit_code=exit_code, stdout=stdout, stderr=stderr)
        return CommandResult(
            stdout,
            stderr,
            exit_code,
            ended.signal,
            ended.wall,
            ended.user,
            ended.system,
            ended.max_rss,
            process.dropped,
            oom_killed=await self.link.latest_oom_kills(ended.oom_kills) if ended.oom_kills else (),
        )


class PieceReader:
    """Output as text: decoded as it comes, with characters that are cut between two pieces put together."""

    def __init__(self, tap: Tap, *, pty: bool) -> None:
        self._tap = tap
        self._pty = pty
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {Kind.DATA: decoder("replace"), Kind.DATA_ERR: decoder("replace")}

    async def next(self) -> OutputPiece | None:
        """The next piece, None at the end."""
        while (piece := await self._tap.next()) is not None:
            kind, data = piece
            if self._pty:
                return OutputPiece(pty=data)
            if text := self._decoders[kind].decode(data):
                return OutputPiece(stdout=text) if kind is Kind.DATA else OutputPiece(stderr=text)
        for kind, decoder in self._decoders.items():
            if text := decoder.decode(b"", True):
                return OutputPiece(stdout=text) if kind is Kind.DATA else OutputPiece(stderr=text)
        return None


async def tell(callback: Callable[[Any], object | Awaitable[object]] | None, value: object) -> None:
    """Calls a callback of the user, and awaits it where it is a coroutine function."""
    if callback is not None:
        answer = callback(value)
        if inspect.isawaitable(answer):
            await answer


class AsyncCommandHandle:
    """A command in the background, or a terminal. It goes on when the handle is dropped; `commands.connect(pid)` finds it again.

    Iterating gives its output live, from what is still kept of its beginning: `async for stdout, stderr, pty in handle`.
    """

    def __init__(self, running: Running, *, pty: bool = False) -> None:
        self._running = running
        self._pty = pty
        self._result: CommandResult | None = None

    @property
    def pid(self) -> int:
        """Its process number in the sandbox."""
        return self._running.process.pid or 0

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._running.process.stdout.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """What it has printed to its standard error so far."""
        return self._running.process.stderr.decode(errors="replace")

    @property
    def exit_code(self) -> int | None:
        """How it ended, None while it runs or before anybody has waited for it."""
        return self._result.exit_code if self._result else None

    async def wait(
        self,
        *,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        on_pty: Callable[[bytes], Any] | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Waits for its end; callbacks get what it printed and prints. A cancelled waiter leaves it running.

        Raises `CommandTimeout`, `OutOfMemory` and other limits, `SandboxDied`, with `check` also `CommandError`.
        """
        if on_stdout is not None or on_stderr is not None or on_pty is not None:
            reader = PieceReader(self._running.process.tap(), pty=self._pty)
            while (piece := await reader.next()) is not None:
                for callback, text in zip((on_stdout, on_stderr, on_pty), piece, strict=True):
                    if text is not None:
                        await tell(callback, text)
        try:
            ended = await self._running.process.ended()
        except (InfrastructureError, OSError) as error:
            raise await self._running.explain(error) from error
        self._result = await self._running.result(ended, check=check)
        return self._result

    async def kill(self) -> bool:
        """Ends it and its process group with SIGKILL; False when it had ended already."""
        return await self.send_signal(SIGKILL)

    async def send_signal(self, number: int) -> bool:
        """Sends a signal to its process group; False when it had ended already."""
        if self._running.process.over:
            return False
        try:
            return await signal(self._running.link.connection(), self.pid, number)
        except (InfrastructureError, OSError) as error:
            raise await self._running.explain(error) from error

    async def send_stdin(self, data: str | bytes) -> None:
        """Writes to its standard input (of a terminal: types). Waits while the program does not read."""
        await self._running.process.send(data.encode() if isinstance(data, str) else bytes(data))

    async def close_stdin(self) -> None:
        """Ends its standard input. Idempotent."""
        self._running.process.end()

    async def resize(self, rows: int, cols: int) -> None:
        """Tells a terminal its new size."""
        self._running.process.resize(rows, cols)

    async def disconnect(self) -> None:
        """Lets go of the command, which runs on. Idempotent."""
        self._running.process.cancel()

    def __aiter__(self) -> AsyncOutput:
        return AsyncOutput(PieceReader(self._running.process.tap(), pty=self._pty))


class AsyncOutput:
    """The live output of a command: an asynchronous iterator of `OutputPiece`."""

    def __init__(self, reader: PieceReader) -> None:
        self._reader = reader

    def __aiter__(self) -> AsyncOutput:
        return self

    async def __anext__(self) -> OutputPiece:
        piece = await self._reader.next()
        if piece is None:
            raise StopAsyncIteration
        return piece
