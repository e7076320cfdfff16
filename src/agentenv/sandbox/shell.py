"""A persistent shell: directory, variables, functions and jobs stay from one command to the next."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import Callable, Mapping
from typing import Literal

from agentenv.errors import CapabilityError, CommandError, CommandTimeout, InfrastructureError, InvalidState
from agentenv.guest.errors import AgentFailure
from agentenv.guest.frames import Kind
from agentenv.guest.processes import PIECE_COST, Command
from agentenv.sandbox.command_handle import tell
from agentenv.sandbox.link import SIGKILL, Link
from agentenv.sandbox.results import CommandResult, OutputCallback
from agentenv.sandbox.shell_process import ARGV, ShellCommand, ShellProcess

INTERRUPT_GRACE = 1.0
"""Seconds that an interrupted command gets to end before its shell is ended with it."""

Overrun = Literal["wall", "idle"]


class AsyncShell:
    """`await sandbox.shell()`: one bash, one command at a time (others wait their turn)."""

    def __init__(self, link: Link, *, cwd: str | None, envs: Mapping[str, str] | None, user: str | int | None) -> None:
        self._link = link
        self._command = Command(argv=ARGV, cwd=cwd, env=envs, user=user, stdin=True)
        self._process: ShellProcess | None = None
        self._turn = asyncio.Lock()
        self._recovery: asyncio.Task[bool] | None = None
        self._closed = False

    async def start(self) -> None:
        """Starts the bash now, so that a missing one is known at once. Raises `CapabilityError`."""
        process = self._running()
        try:
            await process.started()
        except AgentFailure as failure:
            if failure.code == "ENOENT" and self._command.cwd is None:
                raise CapabilityError(
                    f"sandbox {self._link.host.id} has no bash, which a persistent shell needs.",
                    remedy="Use an image with bash, or `commands.run`.",
                ) from failure
            await self._link.start_fault(failure, self._command.cwd or "bash")
        except (InfrastructureError, OSError) as error:
            raise await self._link.explain(error) from error

    async def run(
        self,
        cmd: str,
        *,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Runs a command, or several lines, in the shell as it was left by the command before.

        Its standard input is empty. A syntax error, like any other failure, is a result with a non-zero `exit_code`. A command
        that ends the shell
        (`exit`, `exec`) gives its status and `restarted`: the next one starts in a fresh shell. After `timeout` seconds in all, or
        `idle_timeout` without output, it is interrupted as by Ctrl-C; where it does not heed that, the shell is ended with it.

        Raises `CommandTimeout` (with the output so far, and whether the shell was `restarted`), `CommandError` with `check`,
        `OutOfMemory` and other limits, `SandboxDied`, `InvalidState` after `close()`.
        """
        if "\0" in cmd:
            raise ValueError("a command cannot contain a NUL character")
        async with self._turn:
            if self._recovery is not None:
                await self._recovery
                self._recovery = None
            return await self._run(cmd, timeout, idle_timeout, _Follower(on_stdout, on_stderr), check)

    async def interrupt(self) -> None:
        """Interrupts the command that runs, as Ctrl-C does; the shell stays."""
        if self._process is not None:
            self._process.interrupt()

    async def close(self) -> None:
        """Ends the shell and everything it left in the background. Idempotent."""
        self._closed = True
        self._end()

    async def __aenter__(self) -> AsyncShell:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _running(self) -> ShellProcess:
        if self._closed:
            raise InvalidState("this shell is closed.", remedy="Open another with `sandbox.shell()`.")
        if self._process is None or self._process.over:
            self._process = ShellProcess()
            self._link.connection().start(self._process, "exec", self._command.parameters())
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.signal(SIGKILL)
            process.cancel()

    async def _run(self, cmd: str, timeout: float | None, idle_timeout: float | None, follower: _Follower, check: bool) -> CommandResult:
        began = time.monotonic()
        kills_before = self._link.kills_seen
        process = self._running()
        plain = timeout is None and idle_timeout is None and not follower.wanted
        command = await process.begin(cmd, None if plain else follower)
        try:
            overrun = await self._wait(process, command, timeout, idle_timeout, follower)
        except BaseException:
            # The caller no longer waits (it was cancelled, or its callback failed), but the shell must be ready for the next command.
            self._recovery = asyncio.create_task(self._stop(process, command))
            raise
        if overrun is not None:
            restarted = await self._stop(process, command)
            seconds = (timeout if overrun == "wall" else idle_timeout) or 0.0
            stdout, stderr = _text(command)
            raise CommandTimeout(cmd, kind=overrun, seconds=seconds, stdout=stdout, stderr=stderr, restarted=restarted)
        return await self._result(process, command, cmd, time.monotonic() - began, kills_before, check)

    async def _wait(
        self, process: ShellProcess, command: ShellCommand, timeout: float | None, idle_timeout: float | None, follower: _Follower
    ) -> Overrun | None:
        """Until the command is over (None) or has run or been silent for too long."""
        if command.follower is None:
            await command.done.wait()
            return None
        clock = asyncio.get_running_loop().time
        end = None if timeout is None else clock() + timeout
        while True:
            await follower.deliver()
            process.settle()
            if command.done.is_set():
                await follower.deliver(final=True)
                return None
            silent = None if idle_timeout is None else clock() + idle_timeout
            deadline = min((moment for moment in (end, silent) if moment is not None), default=None)
            try:
                async with asyncio.timeout_at(deadline):
                    await follower.news.wait()
            except TimeoutError:
                return "wall" if end is not None and deadline == end else "idle"

    async def _stop(self, process: ShellProcess, command: ShellCommand) -> bool:
        """Interrupts the command; returns whether the shell had to be ended with it."""
        if not command.done.is_set():
            process.interrupt()
        try:
            async with asyncio.timeout(INTERRUPT_GRACE):
                await command.done.wait()
        except TimeoutError:
            self._end()
            return True
        process.finish(command)
        return process.over

    async def _result(
        self, process: ShellProcess, command: ShellCommand, cmd: str, wall: float, kills_before: int, check: bool
    ) -> CommandResult:
        status, signal, restarted = command.status, None, False
        process.finish(command)
        if status is None:
            restarted = True
            try:
                ended = await process.run()
            except InfrastructureError as error:
                raise await self._link.explain(error) from error
            signal = ended.signal
            status = ended.exit_code if ended.exit_code is not None else 128 + (signal or 0)
        stdout, stderr = _text(command)
        if status or command.stderr:
            await self._link.check_limits(signal=status - 128, output=command.stderr or command.stdout, kills_before=kills_before)
        if status and check:
            raise CommandError(cmd, exit_code=status, stdout=stdout, stderr=stderr)
        return CommandResult(stdout, stderr, status, signal, wall, dropped=command.dropped, restarted=restarted)


def _text(command: ShellCommand) -> tuple[str, str]:
    return command.stdout.decode(errors="replace"), command.stderr.decode(errors="replace")


class _Follower:
    """Hands a command's output to the user's callbacks, outside the socket's callback in which it comes."""

    def __init__(self, on_stdout: OutputCallback | None, on_stderr: OutputCallback | None) -> None:
        self.wanted = on_stdout is not None or on_stderr is not None
        self.news = asyncio.Event()
        self._callbacks: dict[Kind, Callable[[str], object] | None] = {Kind.DATA: on_stdout, Kind.DATA_ERR: on_stderr}
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {Kind.DATA: decoder("replace"), Kind.DATA_ERR: decoder("replace")}
        self._pieces: list[tuple[Kind, bytes]] = []
        self.backlog = 0

    def take(self, kind: Kind, data: bytes) -> None:
        """Output came."""
        if self.wanted:
            self._pieces.append((kind, data))
            self.backlog += len(data) + PIECE_COST
        self.news.set()

    def wake(self) -> None:
        """The command is over."""
        self.news.set()

    async def deliver(self, *, final: bool = False) -> None:
        """Calls the callbacks with what has come."""
        self.news.clear()
        pieces, self._pieces = self._pieces, []
        if final:
            pieces += [(Kind.DATA, b""), (Kind.DATA_ERR, b"")]
        for kind, data in pieces:
            if text := self._decoders[kind].decode(data, final and not data):
                await tell(self._callbacks[kind], text)
            self.backlog -= len(data) + PIECE_COST if data else 0
