"""Leases: what a client made lives for as long as the client is heard of."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field

from agentenv.errors import AgentEnvError, NotFound
from agentenv.monitoring.logs import logger
from agentenv.server.access import Tenant
from agentenv.server.fleet import Fleet

_log = logger(__name__)


@dataclass(slots=True, eq=False)
class _Held:
    tenant: Tenant
    sandboxes: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class Leases:
    """All of one server. A lease that is not renewed within `seconds`, or is given back, takes its sandboxes with it."""

    def __init__(self, fleet: Fleet, seconds: float) -> None:
        self.seconds = seconds
        self._fleet = fleet
        self._held: dict[str, _Held] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def open(self, tenant: Tenant) -> str:
        """A new lease's id."""
        identifier = secrets.token_hex(16)
        self._held[identifier] = _Held(tenant)
        self.renew(tenant, identifier)
        return identifier

    def renew(self, tenant: Tenant, identifier: str) -> None:
        """It lives for the whole time again. Raises `NotFound` once it is over."""
        held = self._of(tenant, identifier)
        if held.timer is not None:
            held.timer.cancel()
        held.timer = asyncio.get_running_loop().call_later(self.seconds, self._expire, identifier)

    def bind(self, tenant: Tenant, identifier: str, sandbox: str) -> None:
        """From now on that sandbox ends with the lease. Raises `NotFound`."""
        held = self._of(tenant, identifier)
        # Those that have ended since are of no interest any more, and a long training makes many.
        held.sandboxes = {one for one in held.sandboxes if self._fleet.known(one)} | {sandbox}

    def lease_of(self, sandbox: str) -> str | None:
        """The lease under which a sandbox lives, None for one that lives by itself."""
        return next((identifier for identifier, held in self._held.items() if sandbox in held.sandboxes), None)

    async def give_back(self, tenant: Tenant, identifier: str) -> None:
        """Ends it, and returns when its sandboxes have ended. Raises `NotFound`."""
        self._of(tenant, identifier)
        await self._end(identifier, "its client ended")

    def _of(self, tenant: Tenant, identifier: str) -> _Held:
        held = self._held.get(identifier)
        if held is None or held.tenant.id != tenant.id:
            raise NotFound("there is no such lease; it may be over.")
        return held

    def _expire(self, identifier: str) -> None:
        task = asyncio.create_task(self._end(identifier, f"its client had not been heard of for {self.seconds:g} s"))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, identifier: str, reason: str) -> None:
        held = self._held.pop(identifier, None)
        if held is None:
            return
        if held.timer is not None:
            held.timer.cancel()
        ends = (self._fleet.kill(held.tenant, sandbox, reason=reason) for sandbox in held.sandboxes)
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(outcome, AgentEnvError) and not isinstance(outcome, NotFound):
                _log.error("server.lease_not_ended", error=str(outcome))
            elif isinstance(outcome, BaseException) and not isinstance(outcome, AgentEnvError):
                raise outcome
