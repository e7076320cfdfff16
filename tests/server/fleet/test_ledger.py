"""What tenants have, held against their quotas."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import QuotaExceeded
from agentenv.isolation.contract import Resources
from agentenv.server.access import Quotas, Tenant
from agentenv.server.fleet.ledger import Charge, Ledger, charge_of
from agentenv.server.fleet.records import Facts, Lifecycle, NetworkRules, State
from agentenv.server.fleet.resident import Resident

GIB = 1 << 30


def tenant(**quotas: float) -> Tenant:
    return Tenant("t", "acme", False, Quotas(**quotas))  # type: ignore[arg-type]


def resident(owner: str = "t", resources: Resources | None = None) -> Resident:
    limits = resources or Resources(cpu=1, memory=GIB, storage=GIB)
    facts = Facts("template", "build", None, "e", "t", 1.0, Lifecycle(), NetworkRules(), limits, {}, {}, "user", None)
    return Resident(str(uuid.uuid4()), owner, facts, "localhost")


@pytest.mark.parametrize("name", ["sandboxes", "cpu", "memory", "storage"])
def test_each_quota_is_kept(name: str) -> None:
    limit = {"sandboxes": 2, "cpu": 2, "memory": 2 * GIB, "storage": 2 * GIB}[name]
    ledger, owner = Ledger(100), tenant(**{name: limit})
    ledger.claim(owner, resident(), State.RUNNING)
    ledger.claim(owner, resident(), State.RUNNING)
    before = ledger.total("t")
    with pytest.raises(QuotaExceeded, match="acme") as caught:
        ledger.claim(owner, resident(), State.RUNNING)
    assert caught.value.retry_after > 0
    assert ledger.total("t") == before


def test_the_capacity_is_of_all_tenants_together() -> None:
    ledger = Ledger(1)
    ledger.claim(tenant(), resident(), State.RUNNING)
    with pytest.raises(QuotaExceeded, match="as many as it may"):
        ledger.claim(Tenant("u", "other", False, Quotas()), resident("u"), State.RUNNING)


def test_a_lowered_quota_takes_nothing_away_and_lets_pausing_go_on() -> None:
    ledger, mine = Ledger(10), resident()
    ledger.claim(tenant(), mine, State.RUNNING)
    ledger.claim(tenant(sandboxes=0, storage=1), mine, State.PAUSED)
    assert ledger.total("t") == Charge(0, 0.0, GIB, GIB)


States = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(list(State)), st.booleans()), max_size=60)


@given(States)
def test_the_sums_are_those_of_the_single_ones(changes: list[tuple[int, State, bool]]) -> None:
    ledger = Ledger(1000)
    everyone = [resident(owner) for owner in "ttuuv"]
    for index, state, in_memory in changes:
        everyone[index].state = state
        everyone[index].handle = object() if in_memory else None  # type: ignore[assignment]
        ledger.settle(everyone[index])
    touched = {index for index, _, _ in changes}
    for owner in "tuv":
        mine = [one for index, one in enumerate(everyone) if one.tenant == owner and index in touched]
        charges = [charge_of(one.facts.resources, one.state, in_memory=one.handle is not None) for one in mine]
        assert ledger.total(owner) == sum(charges, Charge())
    assert ledger.running == sum(ledger.total(owner).sandboxes for owner in "tuv")
