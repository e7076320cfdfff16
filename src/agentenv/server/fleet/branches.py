"""Forks and snapshots of sandboxes: what was captured of one, many can start from."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from agentenv.errors import AgentEnvError, InvalidState, NotFound, QuotaExceeded
from agentenv.sandbox import AsyncSandbox
from agentenv.server.access import Tenant
from agentenv.server.catalogue import DEFAULT_TAG, Catalogue, Recipe, Template
from agentenv.server.catalogue.catalogue import check_name, check_tag
from agentenv.server.fleet.births import MARK
from agentenv.server.fleet.changes import Changes
from agentenv.server.fleet.creating import forked
from agentenv.server.fleet.records import SandboxView, State
from agentenv.server.fleet.resident import Resident


@dataclass(frozen=True, slots=True)
class Named:
    """A snapshot and the tag under which it was just kept."""

    template: Template
    tag: str


@dataclass(frozen=True, slots=True)
class Branches:
    """Does it for the fleet."""

    changes: Changes
    catalogue: Catalogue

    async def fork(self, tenant: Tenant, source: Resident, count: int, timeout: float | None) -> list[SandboxView | AgentEnvError]:
        """See `Fleet.fork`."""
        async with source.lock:
            handle = self._running(source)
            children = [
                Resident(str(uuid.uuid4()), source.tenant, forked(source.facts, source.id, timeout), source.domain) for _ in range(count)
            ]
            outcomes: dict[str, SandboxView | AgentEnvError] = {}
            granted = [child for child in children if self._granted(tenant, child, outcomes)]
            if granted:
                try:
                    await self.changes.register.plan(*granted)
                    async with self.changes.turnstile.turn(tenant.id):
                        born = await handle.fork(len(granted))
                except BaseException as error:
                    for child in granted:
                        await self.changes.end(child, f"the fork failed: {error}", "failed")
                    raise
                for child, one in zip(granted, born, strict=True):
                    outcomes[child.id] = await self._begun(child, one, timeout)
        self.changes.logbook.write(source.id, "forked", children=len(granted), asked=count)
        return [outcomes[child.id] for child in children]

    async def snapshot(self, tenant: Tenant, source: Resident, name: str | None, *, memory: bool) -> Named:
        """See `Fleet.snapshot`."""
        wanted, _, tag = (name or "").partition(":")
        tag = tag or DEFAULT_TAG
        check_tag(tag)
        existing = self._named(tenant, wanted) if wanted else None
        quota = tenant.quotas.templates
        if existing is None and quota is not None and len(self.catalogue.all(tenant.id)) >= quota:
            raise QuotaExceeded(f"the quota of tenant {tenant.name!r} is {quota} templates.", remedy="Delete templates or snapshots.")
        async with source.lock:
            kept = await self._captured(source, memory=memory)
            try:
                template = existing or await self.catalogue.create(tenant.id, kind="snapshot", name=wanted or None, source=source.id)
                recipe = Recipe(source.facts.resources, source.facts.env, source.facts.user, source.facts.cwd)
                await self.catalogue.add_build(template, recipe, snapshot=kept, status="ready", tags=(tag,))
            except BaseException:
                await self.changes.stored.discard(kept)
                raise
        self.changes.logbook.write(source.id, "snapshot taken", snapshot=template.id, name=name)
        return Named(self.catalogue.owned(tenant.id, template.id), tag)

    async def rollback(self, tenant: Tenant, source: Resident, reference: str, *, memory: bool | None) -> None:
        """See `Fleet.rollback`."""
        chosen = self.catalogue.choose(tenant.id, reference)
        if chosen.build.snapshot is None:
            raise NotFound(f"{reference!r} is no snapshot of a sandbox.")
        async with source.lock:
            await self._running(source).rollback(chosen.build.snapshot, memory=memory)
        self.changes.logbook.write(source.id, "rolled back", to=reference)

    def _named(self, tenant: Tenant, name: str) -> Template | None:
        check_name(name)
        try:
            found = self.catalogue.owned(tenant.id, name)
        except NotFound:
            return None
        if found.kind != "snapshot":
            raise InvalidState(f"{name!r} is a template, not a snapshot.", remedy="Choose another name.")
        return found

    async def _captured(self, source: Resident, *, memory: bool) -> str:
        """The node's snapshot of what a sandbox is now; for a paused one, that which its pause took."""
        if source.doom is not None:
            raise NotFound(f"there is no sandbox {source.id!r}.")
        if source.state is State.PAUSED and source.snapshot is not None:
            return source.snapshot
        return (await self._running(source).snapshot(memory=None if memory else False)).id

    def _running(self, source: Resident) -> AsyncSandbox:
        if source.doom is not None:
            raise NotFound(f"there is no sandbox {source.id!r}.")
        if source.state is not State.RUNNING or source.handle is None:
            raise InvalidState(f"sandbox {source.id} is paused.", remedy="Resume or connect to it first.")
        return source.handle

    def _granted(self, tenant: Tenant, child: Resident, outcomes: dict[str, SandboxView | AgentEnvError]) -> bool:
        try:
            self.changes.ledger.claim(tenant, child, State.RUNNING)
        except QuotaExceeded as error:
            outcomes[child.id] = error
            return False
        return True

    async def _begun(self, child: Resident, born: AsyncSandbox | AgentEnvError, timeout: float | None) -> SandboxView | AgentEnvError:
        if isinstance(born, AgentEnvError):
            await self.changes.end(child, f"it could not start: {born}", "failed")
            return born
        machine = self.changes.node.get(born.id)
        machine.request = replace(machine.request, metadata={MARK: child.id})
        try:
            await self.changes.begin(child, born, timeout)
        except NotFound as error:
            return error
        self.changes.logbook.write(child.id, "forked from another sandbox", parent=child.facts.parent, machine=born.id)
        return child.view()
