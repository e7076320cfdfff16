"""Commands in a sandbox: run to the end, or in the background."""

from __future__ import annotations

import contextlib
import datetime as dt
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, overload

from agentenv.errors import InfrastructureError
from agentenv.guest import processes
from agentenv.guest.errors import AgentFailure
from agentenv.guest.processes import Command, Ended, Process
from agentenv.sandbox.command_handle import AsyncCommandHandle, PieceReader, tell
from agentenv.sandbox.link import SIGKILL
from agentenv.sandbox.plain import plain_words
from agentenv.sandbox.process_table import ProcessTable, feed
from agentenv.sandbox.results import CommandResult, OutputCallback, ProcessInfo


@dataclass(frozen=True, slots=True)
class _Order:
    """What is to be done with a command besides running it."""

    title: str
    stdin: bytes | None
    on_stdout: OutputCallback | None
    on_stderr: OutputCallback | None
    check: bool


class AsyncCommands:
    """`sandbox.commands`."""

    def __init__(self, table: ProcessTable) -> None:
        self._table = table
        self._link = table.link

    @overload
    async def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: Literal[False] = False,
        envs: Mapping[str, str] | None = None,
        user: str | int | None = None,
        cwd: str | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        stdin: bool | str | bytes = False,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        login: bool = False,
        check: bool = False,
        tag: str | None = None,
    ) -> CommandResult: ...

    @overload
    async def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: Literal[True],
        envs: Mapping[str, str] | None = None,
        user: str | int | None = None,
        cwd: str | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        stdin: bool | str | bytes = False,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        login: bool = False,
        check: bool = False,
        tag: str | None = None,
    ) -> AsyncCommandHandle: ...

    async def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: bool = False,
        envs: Mapping[str, str] | None = None,
        user: str | int | None = None,
        cwd: str | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        stdin: bool | str | bytes = False,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        login: bool = False,
        check: bool = False,
        tag: str | None = None,
    ) -> CommandResult | AsyncCommandHandle:
        """Runs a command: a string in the sandbox's shell (bash where there is one), a sequence of strings as it is.

        A string of plain words that names a program is run as that program: the shell would do nothing else.

        Waits for its end and returns the result; a non-zero exit is a result, unless `check`. With `background` returns a handle
        as soon as it runs.
        `timeout` (seconds in all) and `idle_timeout` (seconds without output) end the command; what it had printed is in the error.
        `stdin`: its standard input as text or bytes, or True to send it later through the handle; otherwise it is empty.
        Without `cwd` it begins in the sandbox's working directory, but as another `user` than root and the sandbox's in that one's home.
        `login` reads the shell's profile first. The callbacks, plain or coroutine functions, get the output as it comes.

        Raises `CommandTimeout`, `CommandError` (with `check`), `OutOfMemory`, `ProcessLimit`, `StorageFull`, `SandboxDied`, `InvalidState`,
        and `SandboxFileError` when the program or `cwd` does not exist.
        """
        command = Command(
            shell=cmd if isinstance(cmd, str) else None,
            argv=None if isinstance(cmd, str) else tuple(cmd),
            login=login,
            env=envs,
            cwd=cwd,
            user=user,
            stdin=stdin is not False,
            timeout=timeout,
            idle_timeout=idle_timeout,
            keep=background,
            tag=tag,
        )
        words = plain_words(cmd) if isinstance(cmd, str) and not login else None
        content = None if isinstance(stdin, bool) else stdin.encode() if isinstance(stdin, str) else stdin
        order = _Order(cmd if isinstance(cmd, str) else shlex.join(cmd), content, on_stdout, on_stderr, check)
        try:
            if words is not None:
                # Where the program cannot be started, it is the shell's to say so, or to run it otherwise.
                with contextlib.suppress(AgentFailure):
                    return await self._carry_out(replace(command, shell=None, argv=words), order)
            return await self._carry_out(command, order)
        except AgentFailure as failure:
            await self._link.start_fault(failure, cwd or ("/bin/sh" if isinstance(cmd, str) else next(iter(cmd), "")))
        except (InfrastructureError, OSError) as error:
            raise await self._link.explain(error) from error

    async def list(self) -> list[ProcessInfo]:
        """The running commands and terminals of this sandbox, of every handle."""
        try:
            found = await processes.processes(self._link.connection())
        except (InfrastructureError, OSError) as error:
            raise await self._link.explain(error) from error
        return [
            ProcessInfo(
                entry.pid, entry.argv, entry.cwd, entry.user, entry.tag, entry.pty, dt.datetime.fromtimestamp(entry.started, dt.UTC)
            )
            for entry in found
        ]

    async def kill(self, pid: int) -> bool:
        """Ends a command and its process group with SIGKILL; False when there is none with that number."""
        try:
            return await processes.signal(self._link.connection(), pid, SIGKILL)
        except (InfrastructureError, OSError) as error:
            raise await self._link.explain(error) from error

    async def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Writes to the standard input of a command that was started with `stdin=True`, here or by another handle. Raises `NotFound`."""
        process = await self._table.reach(pid)
        await process.send(data.encode() if isinstance(data, str) else bytes(data))

    async def connect(self, pid: int) -> AsyncCommandHandle:
        """A handle on a command in the background; its live output now comes here. Raises `NotFound`."""
        return AsyncCommandHandle(await self._table.attach(pid))

    async def _carry_out(self, command: Command, order: _Order) -> CommandResult | AsyncCommandHandle:
        """Raises `AgentFailure` when it cannot be started."""
        if command.keep:
            return AsyncCommandHandle(await self._table.start_in_background(command, order.title, order.stdin))
        running = self._table.start(command, order.title)
        return await running.result(await _to_the_end(running.process, order), check=order.check)


async def _to_the_end(process: Process, order: _Order) -> Ended:
    try:
        if order.stdin is not None:
            await feed(process, order.stdin)
        if order.on_stdout is not None or order.on_stderr is not None:
            reader = PieceReader(process.tap(), pty=False)
            while (piece := await reader.next()) is not None:
                if piece.stdout is not None:
                    await tell(order.on_stdout, piece.stdout)
                elif piece.stderr is not None:
                    await tell(order.on_stderr, piece.stderr)
        return await process.run()
    finally:
        process.cancel()
