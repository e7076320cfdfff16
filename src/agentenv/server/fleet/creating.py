"""Creates sandboxes: chooses the template, holds the wish against quotas, waits for a turn or takes a ready machine, starts it."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from contextlib import AsyncExitStack
from dataclasses import astuple, dataclass, replace

import msgspec

from agentenv.errors import ConfigError
from agentenv.isolation.contract import Resources
from agentenv.sandbox import AsyncSandbox
from agentenv.server.access import Tenant
from agentenv.server.access.keys import new_token
from agentenv.server.catalogue import Build, Catalogue, Chosen
from agentenv.server.fleet.births import MARK
from agentenv.server.fleet.changes import Changes
from agentenv.server.fleet.pools import Pools, Ready, Sort
from agentenv.server.fleet.records import Facts, NetworkRules, SandboxView, State, Wish
from agentenv.server.fleet.repeats import Repeats
from agentenv.server.fleet.resident import Resident
from agentenv.server.settings import ServerSettings

POOLS_TENANT = ""
"""Whose turn it is when a pool is filled: nobody's, so that it shares the queue with every tenant and stands behind none of its own."""


@dataclass(slots=True, eq=False)
class Creating:
    """Does it for the fleet."""

    settings: ServerSettings
    changes: Changes
    catalogue: Catalogue
    repeats: Repeats
    pools: Pools

    async def create(self, tenant: Tenant, wish: Wish, key: str | None) -> SandboxView:
        """See `Fleet.create`."""
        if key is None:
            return await self._create(tenant, wish, str(uuid.uuid4()))
        digest = hashlib.sha256(msgspec.json.encode(wish, order="sorted")).hexdigest()
        return await self.repeats.once(tenant.id, key, digest, lambda identifier: self._create(tenant, wish, identifier))

    async def ready(self, reference: str) -> Ready:
        """A machine for the pool of that template."""
        chosen = self.catalogue.choose(None, reference)
        resources = self._limits(Wish(reference), chosen.build)
        async with self.changes.turnstile.turn(POOLS_TENANT):
            facts = _facts(Wish(reference), chosen, resources)
            return Ready(self._sort(facts, chosen.build), await self.changes.births.from_build(POOLS_TENANT, facts, chosen.build))

    async def _create(self, tenant: Tenant, wish: Wish, identifier: str) -> SandboxView:
        chosen = self.catalogue.choose(tenant.id, wish.template) if wish.source is None else self.catalogue.around(wish.source)
        check_timeout(wish.timeout, self.settings)
        self.changes.births.network(wish.network)
        facts = _facts(wish, chosen, self._limits(wish, chosen.build))
        resident = Resident(identifier, tenant.id, facts, self.settings.public_domain)
        self.changes.ledger.claim(tenant, resident, State.RUNNING)
        try:
            handle = await self._machine(resident, chosen.build, wish.priority)
            await self.changes.begin(resident, handle, wish.timeout)
        except BaseException as error:
            await self.changes.end(resident, f"it could not start: {error}", "failed")
            raise
        self.catalogue.spawned(chosen.template.id)
        stages = ", ".join(f"{stage.name} {stage.seconds * 1000:.1f} ms" for stage in handle.timings)
        self.changes.logbook.write(resident.id, "created", template=wish.template, machine=handle.id, stages=stages)
        return resident.view()

    async def _machine(self, resident: Resident, build: Build, priority: int) -> AsyncSandbox:
        taken = await self.pools.take(self._sort(resident.facts, build))
        if taken is not None:
            try:
                await self.changes.register.plan(resident)
            except BaseException:
                await taken.kill()
                raise
            machine = self.changes.node.get(taken.id)
            machine.request = replace(machine.request, metadata={MARK: resident.id})
            return taken
        async with self.changes.turnstile.turn(resident.tenant, priority):
            return await self._born(resident, build)

    async def _born(self, resident: Resident, build: Build) -> AsyncSandbox:
        """A machine that starts while the sandbox is written down: after a crash, what one of the two left is cleared up by itself."""
        planned = asyncio.create_task(self.changes.register.plan(resident))
        async with AsyncExitStack() as abandon:
            # Whoever then ends the sandbox has to find it planned, or not planned for good.
            abandon.push_async_callback(asyncio.wait, {planned})
            handle = await self.changes.births.from_build(resident.id, resident.facts, build)
            abandon.push_async_callback(handle.kill)
            await asyncio.shield(planned)
            abandon.pop_all()
        return handle

    def _limits(self, wish: Wish, build: Build) -> Resources:
        return self.changes.births.ground.limits(wish.resources, build.recipe.resources)

    def _sort(self, facts: Facts, build: Build) -> Sort:
        network = self.changes.births.network(facts.network)
        return Sort(build.id, astuple(facts.resources), network)


def check_timeout(seconds: float | None, settings: ServerSettings) -> None:
    """Raises `ConfigError` for a time to live that is not granted here."""
    longest = settings.sandboxes.longest_timeout
    if seconds is not None and not 0 <= seconds <= longest:
        raise ConfigError(f"{seconds:g} seconds are no timeout here", key="timeout", remedy=f"Ask for 0 to {longest:g}.")


def _facts(wish: Wish, chosen: Chosen, resources: Resources) -> Facts:
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
        resources=resources,
        metadata=dict(wish.metadata),
        env={**recipe.env, **wish.env},
        user=recipe.user,
        cwd=recipe.cwd,
        parent=None,
    )


def forked(facts: Facts, parent: str, timeout: float | None) -> Facts:
    """What is true of a fork: the same but for its own tokens and time."""
    return replace(facts, parent=parent, timeout=timeout, envd_token=new_token(), traffic_token=new_token())


def same_reach(before: NetworkRules, after: NetworkRules) -> NetworkRules:
    """The rules for going out of `after`, with those for coming in of `before`."""
    return replace(after, public_traffic=before.public_traffic, request_host=before.request_host, https_ports=before.https_ports)
