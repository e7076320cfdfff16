"""The fleet: every sandbox of the server, for everyone who acts on them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentenv.errors import AgentEnvError, ConfigError, InfrastructureError, SandboxPaused
from agentenv.monitoring.logs import logger
from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox
from agentenv.server.access import Access, Tenant
from agentenv.server.access.keys import new_token
from agentenv.server.catalogue import Catalogue, Chosen
from agentenv.server.database import Database
from agentenv.server.fleet.births import Births
from agentenv.server.fleet.changes import Changes
from agentenv.server.fleet.deadlines import Deadlines
from agentenv.server.fleet.ground import Ground
from agentenv.server.fleet.ledger import Ledger
from agentenv.server.fleet.logbook import Logbook
from agentenv.server.fleet.records import Facts, SandboxView, State, Wish
from agentenv.server.fleet.register import Register
from agentenv.server.fleet.resident import Resident
from agentenv.server.fleet.stored import Stored
from agentenv.server.fleet.turnstile import Turnstile
from agentenv.server.settings import ServerSettings

_log = logger(__name__)


class Fleet:
    """Creates, finds, changes and ends sandboxes. Belongs to one event loop; closing it ends the node with every machine.

    Where a method takes a tenant, another tenant's sandbox does not exist for it. Those without are for the in-sandbox API and the proxy,
    which have credentials of their own.
    """

    def __init__(
        self, settings: ServerSettings, node: Node, ground: Ground, database: Database, access: Access, catalogue: Catalogue
    ) -> None:
        self.node = node
        self.ground = ground
        self.catalogue = catalogue
        self.logbook = Logbook(database)
        self._settings = settings
        self._access = access
        self._register = Register(database)
        self._ledger = Ledger(settings.capacity.sandboxes)
        capacity = settings.capacity
        self._turnstile = Turnstile(capacity.starting, capacity.queue, capacity.queue_timeout)
        self._births = Births(node, ground, settings.sandboxes.isolation)
        self._deadlines = Deadlines(self._due)
        self._stored = Stored(node, catalogue, self._register)
        self._changes = Changes(
            node,
            access,
            self._register,
            self._ledger,
            self._turnstile,
            self._births,
            self._deadlines,
            self.logbook,
            self._stored,
        )
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls, settings: ServerSettings, home: Path, ground: Ground, database: Database, access: Access, catalogue: Catalogue
    ) -> Fleet:
        """Opens the node in `home`, which ends what an earlier server left running, and takes over what that one kept."""
        node = await Node.open(home)
        return cls(settings, node, ground, database, access, catalogue)

    async def close(self) -> None:
        """Ends every machine; paused sandboxes stay what they are."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for resident in self._register:
            self._deadlines.stop(resident)
            if resident.watch is not None:
                resident.watch.cancel()
        await self.node.close()
        await self.logbook.close()

    async def create(self, tenant: Tenant, wish: Wish) -> SandboxView:
        """Starts a sandbox from a template.

        Raises `NotFound` for an unknown template, `ConfigError` or `CapabilityError` for what cannot be had, `QuotaExceeded`, and what a
        start raises; nothing of it is left then.
        """
        chosen = self.catalogue.choose(tenant.id, wish.template)
        self._check_timeout(wish.timeout)
        self._births.internet(wish.network)
        resident = Resident(str(uuid.uuid4()), tenant.id, self._facts(wish, chosen), self._settings.public_domain)
        self._ledger.claim(tenant, resident, State.RUNNING)
        try:
            async with self._turnstile.turn(tenant.id, wish.priority):
                await self._register.plan(resident)
                handle = await self._births.from_build(resident.id, resident.facts, chosen.build)
            await self._changes.begin(resident, handle, wish.timeout)
        except BaseException as error:
            await self._changes.end(resident, f"it could not start: {error}")
            raise
        self.catalogue.spawned(chosen.template.id)
        self.logbook.write(resident.id, "created", template=wish.template, machine=handle.id)
        return resident.view()

    def list(self, tenant: Tenant) -> list[SandboxView]:
        """A tenant's sandboxes, the latest first."""
        mine = [resident.view() for resident in self._register if resident.tenant == tenant.id and resident.state is not State.CREATING]
        return sorted(mine, key=lambda view: (view.started, view.id), reverse=True)

    def owned(self, tenant: Tenant, sandbox_id: str) -> SandboxView:
        """A tenant's sandbox. Raises `NotFound`."""
        return self._register.owned(tenant.id, sandbox_id).view()

    def record(self, sandbox_id: str) -> SandboxView:
        """The sandbox with that id, whoever's it is. Raises `NotFound`."""
        return self._register.get(sandbox_id).view()

    @contextmanager
    def in_use(self, sandbox_id: str) -> Iterator[None]:
        """Within the block the sandbox is not idle: hold it for as long as a request, a command or a connection is open.

        Raises `NotFound`.
        """
        with self._register.get(sandbox_id).in_use():
            yield

    async def running(self, sandbox_id: str) -> AsyncSandbox:
        """The live handle of a sandbox, which is resumed first where it is paused and may be woken by traffic.

        Raises `NotFound`; `SandboxPaused` where it may not be woken; what a resumption raises.
        """
        resident = self._register.get(sandbox_id)
        if resident.state is not State.RUNNING or resident.handle is None:
            await self._wake(resident)
        assert resident.handle is not None
        return resident.handle

    async def pause(self, tenant: Tenant, sandbox_id: str, *, memory: bool = True) -> SandboxView:
        """Pauses a running sandbox. Raises `NotFound`, `InvalidState` when it is paused already."""
        resident = self._register.owned(tenant.id, sandbox_id)
        async with resident.lock:
            await self._changes.pause(resident, "it was asked for", memory=memory)
        return resident.view()

    async def resume(self, tenant: Tenant, sandbox_id: str, timeout: float) -> SandboxView:
        """Resumes a paused sandbox for `timeout` seconds. Raises `NotFound`, `InvalidState` when it runs already."""
        resident = self._register.owned(tenant.id, sandbox_id)
        self._check_timeout(timeout)
        async with resident.lock:
            await self._changes.resume(resident, timeout, "it was asked for")
        return resident.view()

    async def connect(self, tenant: Tenant, sandbox_id: str, timeout: float) -> tuple[SandboxView, bool]:
        """A sandbox that runs for at least `timeout` seconds more, resumed where it was paused; and whether it was. Raises `NotFound`."""
        resident = self._register.owned(tenant.id, sandbox_id)
        self._check_timeout(timeout)
        async with resident.lock:
            resumed = resident.state is State.PAUSED
            if resumed:
                await self._changes.resume(resident, timeout, "a client connected")
            else:
                self._deadlines.grant(resident, timeout, only_more=True)
        return resident.view(), resumed

    def set_timeout(self, tenant: Tenant, sandbox_id: str, timeout: float, *, only_more: bool = False) -> SandboxView:
        """Its time ends `timeout` seconds from now; nothing happens to a paused one. Raises `NotFound`, `ConfigError`."""
        resident = self._register.owned(tenant.id, sandbox_id)
        self._check_timeout(timeout)
        if resident.state is State.RUNNING:
            self._deadlines.grant(resident, timeout, only_more=only_more)
        return resident.view()

    async def kill(self, tenant: Tenant, sandbox_id: str) -> None:
        """Ends a sandbox in whatever state. Raises `NotFound`."""
        await self._changes.end(self._register.owned(tenant.id, sandbox_id), "it was asked for")

    def _facts(self, wish: Wish, chosen: Chosen) -> Facts:
        recipe = chosen.build.recipe
        return Facts(
            template=chosen.template.id,
            build=chosen.build.id,
            alias=chosen.template.name,
            envd_token=new_token(),
            traffic_token=new_token(),
            timeout=wish.timeout,
            lifecycle=wish.lifecycle,
            network=wish.network,
            resources=self.ground.limits(wish.resources, recipe.resources),
            metadata=dict(wish.metadata),
            env={**recipe.env, **wish.env},
            user=recipe.user,
            cwd=recipe.cwd,
        )

    async def _wake(self, resident: Resident) -> None:
        async with resident.lock:
            if resident.state is State.RUNNING:
                return
            lost_by_wish = resident.pause_mode == "filesystem" and not resident.facts.lifecycle.pause_memory
            if not resident.facts.lifecycle.auto_resume or lost_by_wish:
                raise SandboxPaused(f"sandbox {resident.id} is paused.", remedy="Resume or connect to it first.")
            await self._changes.resume(resident, resident.facts.timeout, "traffic came for it")

    def _due(self, resident: Resident) -> None:
        self._in_background(self._expire(resident))

    async def _expire(self, resident: Resident) -> None:
        async with resident.lock:
            if resident.state is not State.RUNNING or not self._deadlines.overdue(resident):
                return
            reason = "its time was over"
            lifecycle = resident.facts.lifecycle
            if lifecycle.on_timeout == "kill":
                await self._changes.end(resident, reason)
                return
            try:
                await self._changes.pause(resident, reason, memory=lifecycle.pause_memory)
            except InfrastructureError as error:
                await self._changes.end(resident, f"{reason}, and it could not be paused: {error}")

    def _in_background(self, work: object) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: object) -> None:
        try:
            await work  # type: ignore[misc]
        except AgentEnvError as error:
            _log.error("server.background_failed", error=str(error))

    def _check_timeout(self, seconds: float) -> None:
        longest = self._settings.sandboxes.longest_timeout
        if not 0 <= seconds <= longest:
            raise ConfigError(f"{seconds:g} seconds are no timeout here", key="timeout", remedy=f"Ask for 0 to {longest:g}.")
