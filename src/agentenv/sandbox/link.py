"""The handle's connection to the agent of the present generation, and what its faults mean.

A guest-level failure says what happened on a stream; here it becomes what a user can act on: the sandbox died (with evidence), a limit was
reached (by whom), a file operation failed.
"""

from __future__ import annotations

import asyncio
import errno
from typing import NoReturn

from agentenv.errors import (
    AgentEnvError,
    InfrastructureError,
    InvalidState,
    LimitReached,
    OutOfMemory,
    ProcessLimit,
    SandboxDied,
    SandboxFileError,
    StorageFull,
)
from agentenv.guest.connection import Connection
from agentenv.guest.errors import AgentFailure
from agentenv.isolation.contract import OomKill
from agentenv.node.hibernated import HIBERNATED
from agentenv.node.records import StorageKill
from agentenv.sandbox.host import Host

DEATH_WAIT = 2.0
"""Seconds that a machine whose agent is gone gets to be seen dead, so that the error can carry how it ended."""

SIGKILL = 9
SIGXFSZ = 25
_NO_FORK = (b"Resource temporarily unavailable", b"Cannot allocate memory", b"can't start new thread", b"annot fork")
_NO_SPACE = (b"No space left on device", b"Disk quota exceeded", b"File too large", b"File size limit exceeded")
_AS_GOOD_AS_FULL = 0.05
"""Of the storage limit: with less left there is no room for what was to be written, which is not always a single byte."""
_ENDED = b"Killed"
"""What a shell prints of a child that SIGKILL ended, and then may go on."""
_TAIL = 16 << 10


class Link:
    """One sandbox's connection. A new generation (after a rollback) gets a new connection; streams of the old one fail."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._connection: Connection | None = None
        self._generation = 0
        self._kills: list[OomKill | StorageKill] = []
        self._fork_refusals_seen = 0

    def connection(self) -> Connection:
        """The connection to the running agent. Raises `InvalidState` for a paused or ended sandbox, `SandboxDied` for a dead one."""
        connection = self._connection
        if connection is None or connection.closed or self._generation != self.host.generation or self.host.state != "running":
            connection = self._open()
        return connection

    def _open(self) -> Connection:
        self.require_running()
        if self._generation != self.host.generation:
            self.disconnect(self._rolled_back())
            self._kills = [kill for kill in self._kills if isinstance(kill, StorageKill)]
            self._fork_refusals_seen = 0
        self._connection = Connection.open(self.host.machine.dial())
        self._generation = self.host.generation
        return self._connection

    def require_running(self) -> None:
        """Raises `InvalidState` for a paused or ended sandbox, `SandboxDied` for a dead one."""
        self.host.require_alive()
        if self.host.state in ("paused", HIBERNATED):
            where = " to the disk" if self.host.state == HIBERNATED else ""
            raise InvalidState(f"sandbox {self.host.id} is paused{where}.", remedy="Call `resume()` first.")

    def disconnect(self, reason: AgentEnvError) -> None:
        """Ends every stream that is open with `reason`."""
        if self._connection is not None:
            self._connection.close(reason)
            self._connection = None

    @property
    def kills_seen(self) -> int:
        """How many kills for want of memory or storage have been looked at so far: those beyond it are news."""
        return len(self._kills)

    async def explain(self, error: InfrastructureError | OSError, generation: int | None = None) -> AgentEnvError:
        """What a broken connection means for the sandbox: the error to raise. A limit that was reached explains itself.

        `generation` is the one that the connection belonged to, by default that of the last connection.
        """
        if isinstance(error, LimitReached):
            return error
        gone = self.host.state == HIBERNATED or self.host.generation != (generation or self._generation)
        if self.host.state != "dead" and gone:
            return self._rolled_back()
        if self.host.state != "dead":
            try:
                await asyncio.wait_for(self.host.wait(), DEATH_WAIT)
            except TimeoutError:
                if isinstance(error, AgentEnvError):
                    return error
                return InfrastructureError(f"sandbox {self.host.id} does not answer: {error}.")
        failure = self.host.failure
        if failure is None:
            return InvalidState(f"sandbox {self.host.id} was ended while this ran in it.")
        if isinstance(failure, SandboxDied):
            kills = failure.evidence.get("oom_kills")
            if isinstance(kills, tuple) and len(kills) > len(self._of(OomKill)) and isinstance(kills[-1], OomKill):
                return self._out_of_memory(kills[-1])
            # A fresh one for each who waits: an exception that is raised twice carries the first one's traceback.
            return SandboxDied(failure.sandbox_id, failure.reason, evidence=failure.evidence)
        return failure

    def _rolled_back(self) -> InvalidState:
        return InvalidState(f"sandbox {self.host.id} was rolled back or paused to the disk while this ran in it.")

    async def file_fault(self, failure: AgentFailure, path: str) -> NoReturn:
        """Raises what a failed file operation on `path` means."""
        if failure.code in ("ENOSPC", "EDQUOT") or (failure.code == "EFBIG" and self.host.request.resources.storage is not None):
            raise await self._storage_full(f"{path}: {failure.detail}.") from failure
        if failure.code == "EIO":  # the agent's helper ended, perhaps because it wrote too much
            await self._check_kills(self.kills_seen)
        raise SandboxFileError(failure.code, path, failure.detail) from failure

    def dial_fault(self, failure: AgentFailure, target: int | str) -> AgentEnvError | OSError:
        """What a failed dial means: the `OSError` that a local connect would raise where there is one."""
        number = getattr(errno, failure.code, None)
        if number is None:
            return failure
        where = f"port {target}" if isinstance(target, int) else target
        return OSError(number, f"{where} of sandbox {self.host.id}: {failure.detail}")

    async def start_fault(self, failure: AgentFailure, path: str) -> NoReturn:
        """Raises what it means that the agent could not start a process; `path` is the likely culprit."""
        if failure.code == "EAGAIN":
            raise ProcessLimit(self.host.id, limit=self.host.request.resources.pids or 0) from failure
        await self.file_fault(failure, path)

    async def check_limits(self, *, signal: int | None, output: bytes | bytearray, kills_before: int) -> None:
        """After a command that failed or complained: raises the limit that explains it, if one was reached meanwhile.

        `signal` ended it, or a child whose end it passed on; `kills_before` is `kills_seen` at its start.
        """
        tail = bytes(output[-_TAIL:])
        if signal == SIGKILL or _ENDED in tail:
            await self._check_kills(kills_before)
        if signal == SIGXFSZ and self.host.request.resources.storage is not None:
            raise await self._storage_full("A file reached the largest size that one may have.")
        if any(sign in tail for sign in _NO_FORK):
            await self._check_processes()
        if any(sign in tail for sign in _NO_SPACE):
            await self._check_storage()

    async def latest_oom_kills(self, count: int) -> tuple[OomKill, ...]:
        """The last `count` kills for want of memory. They have then been looked at, and explain no other command's end."""
        await self._look_at_kills()
        return tuple(kill for kill in self._of(OomKill) if isinstance(kill, OomKill))[-count:]

    async def _look_at_kills(self) -> None:
        memory, storage = await self.host.machine.oom_kills(), await self.host.storage_kills()
        self._kills += [*memory[len(self._of(OomKill)) :], *storage[len(self._of(StorageKill)) :]]

    async def _check_kills(self, kills_before: int) -> None:
        """Raises the limit for which a process was ended since `kills_before` was taken, the latest if there were several."""
        await self._look_at_kills()
        if len(self._kills) <= kills_before:
            return
        last = self._kills[-1]
        if isinstance(last, OomKill):
            raise self._out_of_memory(last)
        raise StorageFull(self.host.id, limit=last.limit, used=last.used, process=last.process)

    def _of(self, kind: type[OomKill | StorageKill]) -> list[OomKill | StorageKill]:
        return [kill for kill in self._kills if isinstance(kill, kind)]

    def _out_of_memory(self, kill: OomKill) -> OutOfMemory:
        return OutOfMemory(self.host.id, limit=kill.limit, peak=kill.peak, process=kill.process)

    async def _check_processes(self) -> None:
        refusals = await self.host.machine.process_limit_hits()
        news, self._fork_refusals_seen = refusals > self._fork_refusals_seen, refusals
        if news:
            raise ProcessLimit(self.host.id, limit=self.host.request.resources.pids or 0)

    async def _check_storage(self) -> None:
        """Raises `StorageFull` when it is the sandbox's storage that is full, and not a small file system in it such as /tmp."""
        limit, usage = self.host.request.resources.storage, await self.host.usage()
        if limit is None:
            return
        free = usage.storage_free if usage.storage_free is not None else limit - (usage.storage or 0)
        if free <= _AS_GOOD_AS_FULL * limit:
            raise await self._storage_full("")

    async def _storage_full(self, detail: str) -> StorageFull:
        usage = await self.host.usage()
        return StorageFull(self.host.id, limit=self.host.request.resources.storage or 0, used=usage.storage or 0, detail=detail)
