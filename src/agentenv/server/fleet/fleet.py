"""The fleet: every sandbox of the server, for everyone who acts on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from agentenv.egress.denials import Denial
from agentenv.errors import AgentEnvError, InfrastructureError, InvalidState, NotFound, SandboxPaused
from agentenv.isolation.contract import Resources
from agentenv.monitoring.logs import logger
from agentenv.node import Node, NodeSandbox
from agentenv.sandbox import AsyncSandbox
from agentenv.server.access import Access, Tenant
from agentenv.server.catalogue import Catalogue
from agentenv.server.database import Database
from agentenv.server.fleet.archive import Archive, Sample
from agentenv.server.fleet.births import Births
from agentenv.server.fleet.branches import Branches, Named
from agentenv.server.fleet.changes import Changes
from agentenv.server.fleet.creating import Creating, check_timeout, same_reach
from agentenv.server.fleet.deadlines import Deadlines
from agentenv.server.fleet.gauges import Gauges
from agentenv.server.fleet.ground import Ground, reach_of
from agentenv.server.fleet.housekeeping import Housekeeping
from agentenv.server.fleet.leaving import LeavingPolicy, leave
from agentenv.server.fleet.ledger import Charge, Ledger
from agentenv.server.fleet.logbook import Logbook
from agentenv.server.fleet.pools import Pools
from agentenv.server.fleet.records import NetworkRules, SandboxView, State, Wish
from agentenv.server.fleet.recovery import recover
from agentenv.server.fleet.register import Ended, Register
from agentenv.server.fleet.repeats import Repeats
from agentenv.server.fleet.resident import Resident
from agentenv.server.fleet.stored import Stored
from agentenv.server.fleet.telemetry import Telemetry
from agentenv.server.fleet.turnstile import Turnstile
from agentenv.server.settings import ServerSettings
from agentenv.templates.cache import prune

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
        capacity = settings.capacity
        self._settings = settings
        self._register = Register(database)
        self._ledger = Ledger(capacity.sandboxes)
        self._turnstile = Turnstile(capacity.starting, capacity.queue, capacity.queue_timeout)
        self._births = Births(node, ground, settings.sandboxes)
        self._deadlines = Deadlines(lambda resident: self._in_background(self._expire(resident)))
        self.telemetry = Telemetry(ground.backend, self.count)
        self.opened = time.time()
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
            self.telemetry,
            settings.crash.policy,
        )
        repeats = Repeats(database, lambda identifier: self._register.get(identifier).view())
        self._pools = Pools(settings.pools, lambda reference: self._creating.ready(reference))
        self._creating = Creating(settings, self._changes, catalogue, repeats, self._pools)
        self._branches = Branches(self._changes, catalogue)
        history = settings.history
        measured, archive = history.samples, Archive(database)
        self.gauges = Gauges(lambda: self._register, self.telemetry.uses, archive, interval=history.interval, samples=measured)
        self._housekeeping = Housekeeping(self._changes, catalogue, database, repeats, self.gauges, settings.idle, history)
        self._tasks: set[asyncio.Task[None]] = set()
        self.leaving = False
        """Whether the server is ending and starts nothing more."""

    @classmethod
    async def open(
        cls, settings: ServerSettings, home: Path, ground: Ground, database: Database, access: Access, catalogue: Catalogue
    ) -> Fleet:
        """Opens the node in `home`, which ends what an earlier server left running, and takes over what that one kept."""
        fleet = cls(settings, await Node.open(home, reach=reach_of(settings.sandboxes)), ground, database, access, catalogue)
        try:
            await recover(fleet.node, fleet._register, fleet._ledger, catalogue, fleet.logbook, settings.public_domain)
            await fleet._stored.sweep(fresh=0.0)
        except BaseException:
            await fleet.close()
            raise
        fleet._in_background(ground.prepare(fleet.node, settings.sandboxes.isolation))
        fleet._pools.start()
        await fleet.gauges.start()
        fleet._housekeeping.start()
        return fleet

    async def close(self) -> None:
        """Ends every machine; paused sandboxes stay what they are."""
        self.leaving = True
        await self._housekeeping.close()
        await self.gauges.close()
        await self._pools.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for resident in self._register:
            self._deadlines.stop(resident)
            if resident.watch is not None:
                resident.watch.cancel()
        await self.node.close()
        await self.logbook.close()

    # What clients ask for.

    async def create(self, tenant: Tenant, wish: Wish, key: str | None = None) -> SandboxView:
        """Starts a sandbox from a template; with an idempotency `key`, once however often it is called.

        Raises `NotFound` for an unknown template, `ConfigError` or `CapabilityError` for what cannot be had, `QuotaExceeded`, and what a
        start raises; nothing of it is left then.
        """
        self._require_staying()
        return await self._creating.create(tenant, wish, key)

    def all(self, tenant: Tenant) -> list[SandboxView]:
        """A tenant's sandboxes, the latest first."""
        return [resident.view() for resident in self.residents(tenant)]

    def residents(self, tenant: Tenant) -> list[Resident]:
        """The same, for who looks at all of them and needs little of each; they change under one's hands."""
        mine = [resident for resident in self._register if resident.tenant == tenant.id and resident.state is not State.CREATING]
        return sorted(mine, key=lambda resident: (resident.started, resident.id), reverse=True)

    def pulse(self, tenant: Tenant) -> int:
        """A number that is another one when any of a tenant's sandboxes comes, goes, or changes its state or end: cheaper than `all`."""
        return hash(tuple((one.id, one.state, one.deadline) for one in self._register if one.tenant == tenant.id))

    def owned(self, tenant: Tenant, sandbox_id: str) -> SandboxView:
        """A tenant's sandbox. Raises `NotFound`."""
        return self._register.owned(tenant.id, sandbox_id).view()

    async def past(self, tenant: Tenant, limit: int = 100) -> list[Ended]:
        """A tenant's sandboxes that ended last, with the reasons."""
        return await self._register.past(tenant.id, limit)

    async def pause(self, tenant: Tenant, sandbox_id: str, *, memory: bool = True, reason: str = "it was asked for") -> SandboxView:
        """Pauses a running sandbox. Raises `NotFound`, `InvalidState` when it is paused already."""
        resident = self._register.owned(tenant.id, sandbox_id)
        async with resident.lock:
            await self._changes.pause(resident, reason, memory=memory)
        return resident.view()

    async def resume(self, tenant: Tenant, sandbox_id: str, timeout: float | None, *, memory: bool = True) -> SandboxView:
        """Resumes a paused sandbox for `timeout` seconds; without `memory`, anew from its files.

        Raises `NotFound`, `InvalidState` when it runs already, `QuotaExceeded`, what a start raises.
        """
        self._require_staying()
        resident = self._register.owned(tenant.id, sandbox_id)
        check_timeout(timeout, self._settings)
        async with resident.lock:
            await self._changes.resume(resident, timeout, "it was asked for", memory=memory)
        return resident.view()

    async def connect(self, tenant: Tenant, sandbox_id: str, timeout: float, *, memory: bool = True) -> tuple[SandboxView, bool]:
        """A sandbox that runs for at least `timeout` seconds more, resumed where it was paused; and whether it was.

        Raises what `resume` raises.
        """
        self._require_staying()
        resident = self._register.owned(tenant.id, sandbox_id)
        check_timeout(timeout, self._settings)
        async with resident.lock:
            resumed = resident.state is State.PAUSED
            if resumed:
                await self._changes.resume(resident, timeout, "a client connected", memory=memory)
            else:
                self._register.owned(tenant.id, sandbox_id)  # It may have ended while we waited.
                self._deadlines.grant(resident, timeout, only_more=True)
        return resident.view(), resumed

    def set_timeout(self, tenant: Tenant, sandbox_id: str, timeout: float | None, *, only_more: bool = False) -> SandboxView:
        """Its time ends `timeout` seconds from now (None: never by itself); a paused one has no end anyhow.

        Raises `NotFound`, `ConfigError`.
        """
        resident = self._register.owned(tenant.id, sandbox_id)
        check_timeout(timeout, self._settings)
        if resident.state is not State.PAUSED:
            self._deadlines.grant(resident, timeout, only_more=only_more)
        return resident.view()

    async def set_network(self, tenant: Tenant, sandbox_id: str, rules: NetworkRules) -> SandboxView:
        """Replaces what a running sandbox may reach; connections that are denied now end.

        Raises `NotFound`, `ConfigError`, `InvalidState` while it is paused, or where it has no network and cannot be given one now.
        """
        resident = self._register.owned(tenant.id, sandbox_id)
        async with resident.lock:
            if resident.state is not State.RUNNING:
                raise InvalidState(f"sandbox {resident.id} is paused.", remedy="Resume or connect to it first.")
            after = same_reach(resident.facts.network, rules)
            wanted, machine = self._births.network(after), self.machine(resident.id)
            if machine is not None and (wanted.enabled or machine.request.network.enabled):
                await machine.set_network(wanted.policy)
            resident.facts = replace(resident.facts, network=after)
            await self._changes.register.note(resident, State.RUNNING)
        return resident.view()

    async def resize(self, tenant: Tenant, sandbox_id: str, wanted: Resources) -> SandboxView:
        """Changes the limits of a running sandbox; None in a field leaves that limit.

        Raises `NotFound`, `InvalidState` while it is paused, `QuotaExceeded`, `CapabilityError`; then nothing has changed.
        """
        resident = self._register.owned(tenant.id, sandbox_id)
        async with resident.lock:
            machine = self.machine(resident.id)
            if resident.state is not State.RUNNING or machine is None:
                raise InvalidState(f"sandbox {resident.id} is paused.", remedy="Resume or connect to it first.")
            before = resident.facts
            resident.facts = replace(before, resources=self.ground.limits(wanted, before.resources))
            try:
                self._ledger.claim(tenant, resident, State.RUNNING)
                await machine.resize(wanted)
                await self._changes.register.note(resident, State.RUNNING)
            except BaseException:
                resident.facts = before
                self._ledger.settle(resident)
                raise
        return resident.view()

    async def kill(self, tenant: Tenant, sandbox_id: str, *, reason: str = "it was asked for") -> None:
        """Ends a sandbox in whatever state. Raises `NotFound`."""
        await self._changes.end(self._register.owned(tenant.id, sandbox_id), reason)

    async def fork(self, tenant: Tenant, sandbox_id: str, count: int, timeout: float | None) -> list[SandboxView | AgentEnvError]:
        """Starts `count` sandboxes with what a running one has now; for each either the sandbox or why it did not start.

        Raises `NotFound`, `InvalidState` while it is paused, what a capture raises.
        """
        self._require_staying()
        check_timeout(timeout, self._settings)
        return await self._branches.fork(tenant, self._register.owned(tenant.id, sandbox_id), count, timeout)

    async def snapshot(self, tenant: Tenant, sandbox_id: str, name: str | None = None, *, memory: bool = True) -> Named:
        """Keeps what a sandbox has now, so that others can start from it; it outlives the sandbox.

        `name` may carry a `:tag`; a snapshot that has the name gets one more build. `memory`: with its processes, where the backend can
        write those down. Raises `NotFound`, `ConfigError`, `InvalidState`,
        `QuotaExceeded`, `StorageFull`.
        """
        return await self._branches.snapshot(tenant, self._register.owned(tenant.id, sandbox_id), name, memory=memory)

    async def rollback(self, tenant: Tenant, sandbox_id: str, reference: str, *, memory: bool | None = None) -> None:
        """Puts a running sandbox back to a snapshot. Raises `NotFound`, `InvalidState` while it is paused, what a start raises."""
        await self._branches.rollback(tenant, self._register.owned(tenant.id, sandbox_id), reference, memory=memory)

    async def denials(self, tenant: Tenant, sandbox_id: str) -> tuple[Denial, ...]:
        """What a sandbox was refused to reach since its machine started, the oldest first. Raises `NotFound`."""
        resident = self._register.owned(tenant.id, sandbox_id)
        machine = self.machine(resident.id)
        if machine is None or not machine.request.network.enabled:
            return ()
        return await machine.network_log()

    async def samples(self, tenant: Tenant, sandbox_id: str) -> list[Sample]:
        """What a sandbox used, the oldest first; at least one measurement where it runs. Raises `NotFound`."""
        return await self.gauges.history(self._register.owned(tenant.id, sandbox_id))

    # What the in-sandbox API, the proxy, builds and the dashboard need.

    def known(self, sandbox_id: str) -> bool:
        """Whether there is a sandbox with that id, running or paused."""
        return sandbox_id in self._register

    def machine(self, sandbox_id: str) -> NodeSandbox | None:
        """The node's side of the machine that a sandbox has now; None while it has none. Raises `NotFound`."""
        handle = self._register.get(sandbox_id).handle
        try:
            return None if handle is None else self.node.get(handle.id)
        except NotFound:
            return None

    def record(self, sandbox_id: str) -> SandboxView:
        """The sandbox with that id, whoever's it is. Raises `NotFound`."""
        return self._register.get(sandbox_id).view()

    def whose_token(self, fits: Callable[[str], bool]) -> SandboxView | None:
        """The sandbox whose envd token `fits` accepts, whoever's it is."""
        return next((resident.view() for resident in self._register if fits(resident.facts.envd_token)), None)

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

    async def discard(self, snapshots: Iterable[str]) -> None:
        """Removes snapshots of the node that no template and no paused sandbox needs any more."""
        for snapshot in snapshots:
            await self._changes.stored.discard(snapshot)

    def usage_of(self, tenant: Tenant) -> Charge:
        """What a tenant has at the moment, as its quotas count."""
        return self._ledger.total(tenant.id)

    def given(self) -> Charge:
        """What all tenants together have at the moment."""
        return self._ledger.given()

    async def collect_garbage(self) -> dict[str, int]:
        """Removes what nothing needs; returns how many snapshots, results of build steps, layers, images, dead owners, and their bytes."""
        await self._housekeeping.tidy()
        snapshots = await self._stored.sweep()
        steps = len(await prune(self.node, keep=self._stored.needed()))
        report = await self.node.collect_garbage()
        return {"snapshots": snapshots, "steps": steps} | asdict(report)

    def count(self) -> dict[str, int]:
        """How many sandboxes there are of all tenants, by state; how many starts are under way and wait; how many machines are ready."""
        states = [resident.state for resident in self._register]
        shown = {state.value: states.count(state) for state in State if state is not State.ENDED}
        pooled = sum(self._pools.ready().values())
        return shown | {"starting": self._turnstile.inside, "waiting": self._turnstile.waiting, "pooled": pooled}

    async def leave(self, policy: LeavingPolicy, grace: float) -> None:
        """Starts nothing more, and brings all running sandboxes to where they can be left; see `ShutdownSettings`."""
        self.leaving = True
        await leave(self._changes, policy, grace, at_once=self._settings.capacity.starting)

    async def _wake(self, resident: Resident) -> None:
        self._require_staying()
        async with resident.lock:
            if resident.state is State.RUNNING:
                return
            lifecycle = resident.facts.lifecycle
            if not lifecycle.auto_resume or resident.by_wish_without_memory:
                raise SandboxPaused(f"sandbox {resident.id} is paused.", remedy="Resume or connect to it first.")
            await self._changes.resume(resident, resident.facts.timeout, "traffic came for it")

    async def _expire(self, resident: Resident) -> None:
        async with resident.lock:
            if resident.state is not State.RUNNING or not self._deadlines.overdue(resident):
                return
            reason = "its time was over"
            lifecycle = resident.facts.lifecycle
            if lifecycle.on_timeout == "kill":
                await self._changes.end(resident, reason, "timeout")
                return
            try:
                await self._changes.pause(resident, reason, memory=lifecycle.pause_memory)
            except InfrastructureError as error:
                await self._changes.end(resident, f"{reason}, and it could not be paused: {error}", "timeout")

    def _in_background(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except AgentEnvError as error:
            _log.error("server.background_failed", error=str(error))

    def _require_staying(self) -> None:
        if self.leaving:
            raise InfrastructureError("the server is ending and starts nothing more.", remedy="Try again in a moment.")
