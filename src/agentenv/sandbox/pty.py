"""Terminals in a sandbox."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from agentenv.errors import InfrastructureError
from agentenv.guest import processes
from agentenv.guest.errors import AgentFailure
from agentenv.guest.processes import Command
from agentenv.sandbox.command_handle import AsyncCommandHandle
from agentenv.sandbox.link import SIGKILL
from agentenv.sandbox.process_table import ProcessTable
from agentenv.sandbox.results import PtySize


class AsyncPty:
    """`sandbox.pty`. A terminal is a command whose output is bytes: `async for _, _, data in handle`, or `handle.wait(on_pty=…)`."""

    def __init__(self, table: ProcessTable) -> None:
        self._table = table

    async def create(
        self,
        size: PtySize | tuple[int, int] = (24, 80),
        *,
        cmd: str | Sequence[str] | None = None,
        user: str | int | None = None,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncCommandHandle:
        """Starts a program on a new terminal of `size` (rows, columns); without `cmd` the sandbox's shell.

        `TERM` is `xterm-256color` unless `envs` says otherwise. `timeout`: seconds until it is ended.
        """
        rows, cols = (size.rows, size.cols) if isinstance(size, PtySize) else size
        chosen = cmd if cmd is not None else "if command -v bash >/dev/null; then exec bash -i; else exec sh -i; fi"
        command = Command(
            shell=chosen if isinstance(chosen, str) else None,
            argv=None if isinstance(chosen, str) else tuple(chosen),
            env={"TERM": "xterm-256color", **(envs or {})},
            cwd=cwd,
            user=user,
            stdin=True,
            pty=(rows, cols),
            timeout=timeout,
            keep=True,
        )
        title = chosen if isinstance(chosen, str) else shlex.join(chosen)
        try:
            return AsyncCommandHandle(await self._table.start_in_background(command, title), pty=True)
        except AgentFailure as failure:
            await self._table.link.start_fault(failure, cwd or (title if cmd else "/bin/sh"))
        except (InfrastructureError, OSError) as error:
            raise await self._table.link.explain(error) from error

    async def connect(self, pid: int) -> AsyncCommandHandle:
        """A handle on a terminal that already runs; what it shows from now on comes here. Raises `NotFound`."""
        return AsyncCommandHandle(await self._table.attach(pid), pty=True)

    async def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Types into a terminal. Raises `NotFound`."""
        process = await self._table.reach(pid)
        await process.send(data.encode() if isinstance(data, str) else bytes(data))

    async def resize(self, pid: int, size: PtySize | tuple[int, int]) -> None:
        """Tells a terminal its new size (rows, columns). Raises `NotFound`."""
        rows, cols = (size.rows, size.cols) if isinstance(size, PtySize) else size
        (await self._table.reach(pid)).resize(rows, cols)

    async def kill(self, pid: int) -> bool:
        """Ends a terminal and all that runs on it; False when there is none with that number."""
        try:
            return await processes.signal(self._table.link.connection(), pid, SIGKILL)
        except (InfrastructureError, OSError) as error:
            raise await self._table.link.explain(error) from error
