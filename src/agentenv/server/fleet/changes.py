"""The changes of a sandbox's state: paused, resumed, ended. Each is written down before it is begun and again when it is done.

Whoever calls `pause` or `resume` holds the sandbox's lock. `end` needs none and works in every state: what is under way fails, finds the
sandbox doomed and leaves it alone.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from agentenv.errors import AgentEnvError, InvalidState, NotFound, SandboxDied
from agentenv.monitoring.logs import logger
from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox
from agentenv.server.access import Access
from agentenv.server.fleet.births import MARK, Births
from agentenv.server.fleet.deadlines import Deadlines
from agentenv.server.fleet.ledger import Ledger
from agentenv.server.fleet.logbook import Logbook
from agentenv.server.fleet.records import State
from agentenv.server.fleet.register import Register
from agentenv.server.fleet.resident import Resident
from agentenv.server.fleet.stored import Stored
from agentenv.server.fleet.survival import SALVAGED, CrashPolicy, outlives
from agentenv.server.fleet.telemetry import Cause, Telemetry
from agentenv.server.fleet.turnstile import Turnstile

_log = logger(__name__)

PROCESSES = "memory and processes"
"""What is lost of a sandbox that is started anew from its files."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Does it for all sandboxes of a fleet."""

    node: Node
    access: Access
    register: Register
    ledger: Ledger
    turnstile: Turnstile
    births: Births
    deadlines: Deadlines
    logbook: Logbook
    stored: Stored
    telemetry: Telemetry
    crash: CrashPolicy

    async def begin(self, resident: Resident, handle: AsyncSandbox, timeout: float | None) -> None:
        """A machine runs for it: from now on it is there for everybody. Raises `NotFound` when it was ended before it had begun."""
        if resident.doom is not None:
            await handle.kill()
            self._require_there(resident)
        resident.handle = handle
        self._insure(resident, handle)
        self.telemetry.up(handle.timings)
        self._runs(resident, timeout)

    async def pause(self, resident: Resident, reason: str, *, memory: bool = True) -> None:
        """Freezes it and keeps its files where they outlast this process; without `memory`, its machine ends.

        Raises `InvalidState` unless it runs. On any failure it goes on running.
        """
        handle = self._require_running(resident)
        await self.register.note(resident, State.PAUSING)
        resident.state = State.PAUSING
        try:
            # First, so that nothing happens in it any more that would be lost where its machine ends.
            await handle.pause()
            kept = await handle.snapshot(memory=None if memory else False)
        except BaseException as error:
            await self._go_on(resident, handle)
            self._explain(resident, error)
            raise
        resident.snapshot, resident.paused = kept.id, time.time()
        resident.memory_kept, resident.by_wish_without_memory = kept.memory, not memory
        resident.pause_mode = "full" if memory else "filesystem"
        self.deadlines.stop(resident)
        # What lies on the disk needs no machine; memory that cannot be written down stays where it is as long as this process lives.
        if kept.memory or not memory:
            await self._let_go(resident)
        await self.register.note(resident, State.PAUSED)
        if resident.doom is not None:
            # It was ended when its files had just been kept: nobody else knows of them.
            await self.stored.discard(kept.id)
            raise NotFound(f"sandbox {resident.id} was ended meanwhile: {resident.doom}.")
        resident.state = State.PAUSED
        self.ledger.settle(resident)
        keeps = "memory and files" if kept.memory else "files; its memory as long as the server lives" if memory else "files"
        self.logbook.write(resident.id, "paused", reason=reason, keeps=keeps, lost=None if memory else PROCESSES)

    async def resume(self, resident: Resident, timeout: float | None, reason: str, *, memory: bool = True) -> None:
        """Lets it go on, or starts it anew from its files where its memory is not there any more, or is not wanted.

        Raises `InvalidState` unless it is paused, `QuotaExceeded`; then it stays paused.
        """
        self._require_there(resident)
        if resident.state is not State.PAUSED:
            raise InvalidState(f"sandbox {resident.id} is not paused.")
        self.ledger.claim(self.access.tenant(resident.tenant), resident, State.RUNNING)
        kept, resident.state = resident.snapshot, State.RESUMING
        try:
            await self.register.note(resident, State.RESUMING)
            if not memory and kept is not None:
                await self._let_go(resident)
            lost = None
            if resident.handle is not None:
                await resident.handle.resume()
            else:
                lost = None if memory and resident.memory_kept else PROCESSES
                resident.handle = await self._anew(resident, memory=memory)
            # Before it is noted as running, so that at each moment either the pause's snapshot or this keeps its files.
            self._insure(resident, resident.handle)
            resident.snapshot = None
            await self.register.note(resident, State.RUNNING)
            self._require_there(resident)
        except BaseException as error:
            await self._stay_paused(resident, kept)
            self._explain(resident, error)
            raise
        resident.pause_mode, resident.paused, resident.memory_kept = None, None, False
        self._runs(resident, timeout)
        self.logbook.write(resident.id, "resumed", reason=reason, lost=lost)
        if kept is not None:
            await self.stored.discard(kept)

    async def end(self, resident: Resident, reason: str, cause: Cause = "asked") -> None:
        """Ends it for good and frees what it held. Idempotent; the first reason counts."""
        if resident.doom is not None:
            return
        resident.doom = reason
        self.deadlines.stop(resident)
        self.logbook.write(resident.id, "ended", reason=reason)
        self.telemetry.down(resident.id, cause)
        handle, kept = resident.handle, resident.snapshot
        try:
            await self.register.end(resident, reason)
        finally:
            self.ledger.settle(resident)
            if handle is not None:
                await handle.kill()
        if kept is not None:
            await self.stored.discard(kept)

    def _runs(self, resident: Resident, timeout: float | None) -> None:
        assert resident.handle is not None
        resident.state = State.RUNNING
        resident.used = time.monotonic()
        self.ledger.settle(resident)
        self.deadlines.grant(resident, timeout)
        if resident.watched is not resident.handle:
            resident.watched = resident.handle
            resident.watch = asyncio.create_task(self._watch(resident, resident.handle))

    def _insure(self, resident: Resident, handle: AsyncSandbox) -> None:
        """Has its files kept if this process dies, where the policy for that says so."""
        if outlives(self.crash, resident.facts):
            with suppress(NotFound):  # it has ended already
                self.node.salvage_at_death(handle.id, {MARK: resident.id, SALVAGED: "yes"})

    async def _watch(self, resident: Resident, handle: AsyncSandbox) -> None:
        """Notices that its machine ended though nobody here ended it."""
        failure: AgentEnvError | None = None
        with suppress(NotFound):  # it ended before it could be looked at
            machine = self.node.get(handle.id)
            await machine.wait()
            failure = machine.failure
        if resident.handle is handle and resident.doom is None:
            reason = failure.message if failure else "its machine was ended from outside the server"
            try:
                await self.end(resident, reason, "died")
            except AgentEnvError as error:
                _log.error("server.end_not_written", sandbox=resident.id, reason=reason, error=str(error))

    async def _anew(self, resident: Resident, *, memory: bool) -> AsyncSandbox:
        if resident.snapshot is None:
            raise SandboxDied(resident.id, "its machine is gone, and nothing was kept of it")
        goes_on = memory and resident.memory_kept
        build = None if goes_on else self.stored.catalogue.known_build(resident.facts.build)
        async with self.turnstile.turn(resident.tenant):
            return await self.births.from_snapshot(
                resident.id, resident.facts, resident.snapshot, memory=goes_on, recipe=build.recipe if build else None
            )

    async def _let_go(self, resident: Resident) -> None:
        """Ends the machine of a sandbox that stays."""
        handle, resident.handle = resident.handle, None
        if handle is not None:
            await handle.kill()

    async def _go_on(self, resident: Resident, handle: AsyncSandbox) -> None:
        """After a pause that failed."""
        if resident.doom is not None:
            return
        try:
            await handle.resume()
            await self.register.note(resident, State.RUNNING)
        except AgentEnvError as error:
            self.logbook.write(resident.id, "could not go on after a pause that failed", level="error", error=error)
        resident.state = State.RUNNING

    async def _stay_paused(self, resident: Resident, kept: str | None) -> None:
        """After a resumption that failed. A machine that runs already stands still again."""
        if resident.doom is not None:
            if resident.handle is not None:
                await resident.handle.kill()
            if kept is not None:
                await self.stored.discard(kept)
            return
        resident.snapshot, resident.state = kept, State.PAUSED
        try:
            if resident.handle is not None:
                await resident.handle.pause()
            await self.register.note(resident, State.PAUSED)
        except AgentEnvError as error:
            self.logbook.write(resident.id, "could not be paused again", level="error", error=error)
        self.ledger.settle(resident)

    def _require_there(self, resident: Resident) -> None:
        if resident.doom is not None:
            raise NotFound(f"there is no sandbox {resident.id!r}: {resident.doom}.")

    def _require_running(self, resident: Resident) -> AsyncSandbox:
        self._require_there(resident)
        if resident.state is not State.RUNNING or resident.handle is None:
            raise InvalidState(f"sandbox {resident.id} is {resident.state.shown} already.", remedy="Resume or connect to it first.")
        return resident.handle

    def _explain(self, resident: Resident, error: BaseException) -> None:
        """Raises what a failure means when the sandbox was ended meanwhile."""
        if resident.doom is not None and isinstance(error, AgentEnvError):
            raise NotFound(f"sandbox {resident.id} was ended meanwhile: {resident.doom}.") from error
