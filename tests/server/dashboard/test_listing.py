"""Filtering, ordering and paging of a thousand sandboxes."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.isolation.contract import Resources
from agentenv.server.dashboard.listing import PAGE_SIZE, Query, Shown, SortBy, page_of, turned
from agentenv.server.fleet import Fleet, Lifecycle, NetworkRules, State
from agentenv.server.fleet.archive import Sample
from agentenv.server.fleet.records import Facts
from agentenv.server.fleet.resident import Resident

FACTS = Facts("t", "b", None, "", "", 300.0, Lifecycle(), NetworkRules(), Resources(), {}, {}, "user", None)
THERE = [
    Resident(
        f"{number:08x}",
        "t",
        replace(FACTS, alias="base" if number % 2 else "chess", metadata=MappingProxyType({"lane": str(number)})),
        "localhost",
        started=float(number),
        state=State.PAUSED if number % 4 == 0 else State.RUNNING,
    )
    for number in range(1000, 0, -1)
]


def latest(identifier: str) -> Sample | None:
    number = int(identifier, 16)
    return None if number % 10 == 0 else Sample(0.0, number / 1000, number << 10, 0, number)


FLEET = cast(Fleet, SimpleNamespace(residents=lambda tenant: list(THERE), gauges=SimpleNamespace(latest=latest)))


def look(**wanted: Any) -> Any:
    return page_of(FLEET, cast(Any, None), Query(**wanted))


def test_the_first_page_has_the_latest_and_says_how_many_there_are() -> None:
    page = look()
    assert [row["id"] for row in page.rows] == [one.id for one in THERE[:PAGE_SIZE]]
    assert (page.first, page.last, page.matching, page.total) == (1, PAGE_SIZE, 1000, 1000)
    assert (page.running, page.paused, page.has_more) == (750, 250, True)


@pytest.mark.parametrize(
    ("text", "state", "matching"), [("chess", "all", 500), ("lane=77", "all", 11), ("CHESS", "paused", 250), ("nothing", "all", 0)]
)
def test_filters(text: str, state: Shown, matching: int) -> None:
    assert look(text=text, state=state).matching == matching


def test_by_memory_the_largest_first_and_what_was_not_measured_last() -> None:
    assert look(sort="memory").rows[0]["id"] == f"{999:08x}"
    last = look(sort="memory", page=10_000).rows
    assert {row["memory"] for row in last} == {"—"}


@settings(max_examples=15, deadline=None)
@given(pages=st.lists(st.sampled_from([-1, 1]), max_size=15), sort=st.sampled_from(["id", "template", "cpu", "started", "ends"]))
def test_turning_pages_stays_within_them(pages: list[int], sort: SortBy) -> None:
    query = Query(sort=sort)
    for by in pages:
        page = page_of(FLEET, cast(Any, None), query)
        query = turned(query, by, page)
    page = page_of(FLEET, cast(Any, None), query)
    assert 1 <= page.first <= page.last <= 1000
    assert len(page.rows) == page.last - page.first + 1


def test_all_pages_together_are_all_sandboxes_once() -> None:
    seen = [row["id"] for number in range(1000 // PAGE_SIZE) for row in look(sort="template", page=number).rows]
    assert len(seen) == len(set(seen)) == 1000
