"""What tenants have at the moment, held against their quotas; and how many sandboxes run in all, held against the server's capacity.

Nothing here waits, so that a check and the charge that follows it are one step.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from agentenv.errors import QuotaExceeded
from agentenv.isolation.contract import Resources
from agentenv.server.access import Tenant
from agentenv.server.fleet.records import State
from agentenv.server.fleet.resident import Resident
from agentenv.units import format_size

RETRY_AFTER = 5
"""Seconds after which it may be worth asking again: something has to end first."""


@dataclass(frozen=True, slots=True)
class Charge:
    """A sandbox's share, or the sum of several: memory and storage in bytes, cpu in cores. What is not limited counts 0."""

    sandboxes: int = 0
    cpu: float = 0.0
    memory: int = 0
    storage: int = 0

    def __add__(self, other: Charge) -> Charge:
        return Charge(self.sandboxes + other.sandboxes, self.cpu + other.cpu, self.memory + other.memory, self.storage + other.storage)

    def __sub__(self, other: Charge) -> Charge:
        return Charge(self.sandboxes - other.sandboxes, self.cpu - other.cpu, self.memory - other.memory, self.storage - other.storage)


def charge_of(resources: Resources, state: State, *, in_memory: bool = True) -> Charge:
    """What a sandbox counts in a state: a paused one no cores, and memory only while its machine is kept."""
    memory, storage = resources.memory or 0, resources.storage or 0
    if state is State.ENDED:
        return Charge()
    if state is State.PAUSED:
        return Charge(memory=memory if in_memory else 0, storage=storage)
    return Charge(1, resources.cpu or 0.0, memory, storage)


class Ledger:
    """Keeps the sums. `capacity` is how many sandboxes may run at once."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._charged: dict[str, Charge] = {}
        self._totals: dict[str, Charge] = {}
        self._running = 0

    @property
    def running(self) -> int:
        """Sandboxes that run, are about to, or are being paused."""
        return self._running

    def total(self, tenant: str) -> Charge:
        """What a tenant has."""
        return self._totals.get(tenant, Charge())

    def given(self) -> Charge:
        """What all tenants together have."""
        return sum(self._totals.values(), Charge())

    def claim(self, tenant: Tenant, resident: Resident, state: State) -> None:
        """Charges what `resident` counts in `state`, if that is allowed. Raises `QuotaExceeded` and charges nothing if not."""
        wanted = charge_of(resident.facts.resources, state)
        more = wanted - self._charged.get(resident.id, Charge())
        if more.sandboxes > 0 and self._running + more.sandboxes > self._capacity:
            raise QuotaExceeded(
                f"the server runs {self._running} sandboxes, as many as it may.", retry_after=RETRY_AFTER, remedy="Try again later."
            )
        after = self.total(tenant.id) + more
        for field in fields(Charge):
            limit, value = getattr(tenant.quotas, field.name), getattr(after, field.name)
            if limit is not None and value > limit and getattr(more, field.name) > 0:
                raise QuotaExceeded(
                    f"the quota of tenant {tenant.name!r} is {_shown(field.name, limit)}, and this would make {_shown(field.name, value)}.",
                    retry_after=RETRY_AFTER,
                    remedy="End or remove sandboxes, or ask an administrator for more.",
                )
        self._set(resident, wanted)

    def settle(self, resident: Resident) -> None:
        """Charges what `resident` counts in its present state."""
        state = State.ENDED if resident.doom is not None else resident.state
        self._set(resident, charge_of(resident.facts.resources, state, in_memory=resident.handle is not None))

    def _set(self, resident: Resident, charge: Charge) -> None:
        before = self._charged.pop(resident.id, Charge())
        if charge != Charge():
            self._charged[resident.id] = charge
        self._totals[resident.tenant] = self.total(resident.tenant) + charge - before
        self._running += charge.sandboxes - before.sandboxes
        if self._totals[resident.tenant] == Charge():
            del self._totals[resident.tenant]


def _shown(name: str, value: float) -> str:
    if name in ("memory", "storage"):
        return f"{format_size(int(value))} of {name}"
    return f"{value:g} {'cores' if name == 'cpu' else name}"
