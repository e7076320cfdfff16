"""The sandboxes of a tenant as rows of a table: filtered, ordered and cut into pages here, so that a browser never gets all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentenv.server.access import Tenant
from agentenv.server.dashboard.rendering import EMPTY, clock, short, size
from agentenv.server.fleet import Fleet, SandboxView
from agentenv.server.fleet.resident import Resident

PAGE_SIZE = 25
SortBy = Literal["id", "template", "state", "cpu", "memory", "processes", "started", "ends"]
Shown = Literal["all", "running", "paused"]


@dataclass(frozen=True, slots=True)
class Query:
    """What of them is to be seen: text in an id, a template's name or metadata, a state, the order, the page (from 0)."""

    text: str = ""
    state: Shown = "all"
    sort: SortBy = "started"
    descending: bool = True
    page: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """One page of rows; `first` and `last` count from 1, `matching` are all that fit, `total` all that there are."""

    rows: tuple[dict[str, Any], ...]
    first: int
    last: int
    matching: int
    total: int
    running: int
    paused: int

    @property
    def has_more(self) -> bool:
        """Whether there is a page after this one."""
        return self.last < self.matching


def page_of(fleet: Fleet, tenant: Tenant, query: Query) -> Page:
    """What `query` asks for. A page beyond the end is the last one."""
    # Of a thousand only those that are shown are looked at closely.
    there, text = fleet.residents(tenant), query.text.strip().lower()
    running = sum(one.state.shown == "running" for one in there)
    found = [one for one in there if query.state in ("all", one.state.shown) and (not text or _contains(one, text))]
    if (query.sort, query.descending) != ("started", True):  # The fleet gives them so.
        found.sort(key=_order(fleet, query.sort), reverse=query.descending)
    start = min(query.page, max(len(found) - 1, 0) // PAGE_SIZE) * PAGE_SIZE
    part = found[start : start + PAGE_SIZE]
    rows = tuple(_row(fleet, one.view()) for one in part)
    return Page(rows, start + 1 if part else 0, start + len(part), len(found), len(there), running, len(there) - running)


def turned(query: Query, by: int, page: Page) -> Query:
    """The query for the page before (`by` -1) or after (1) the one that is shown."""
    return replace(query, page=max((page.first - 1) // PAGE_SIZE + by, 0))


def _contains(one: Resident, text: str) -> bool:
    return any(text in part for part in _texts(one))


def _texts(one: Resident) -> Iterable[str]:
    yield one.id
    yield (one.facts.alias or one.facts.template).lower()
    for key, value in one.facts.metadata.items():
        yield f"{key}={value}".lower()


def _order(fleet: Fleet, sort: SortBy) -> Callable[[Resident], tuple[Any, ...]]:
    def measured(one: Resident) -> float:
        sample = fleet.gauges.latest(one.id)
        return -1.0 if sample is None or one.state.shown == "paused" else getattr(sample, sort)

    keys: dict[SortBy, Callable[[Resident], Any]] = {
        "id": lambda one: one.id,
        "template": lambda one: one.facts.alias or one.facts.template,
        "state": lambda one: one.state.shown,
        "started": lambda one: one.started,
        "ends": lambda one: one.deadline or float("inf"),
    }
    key = keys.get(sort, measured)
    return lambda one: (key(one), one.id)


def _row(fleet: Fleet, view: SandboxView) -> dict[str, Any]:
    sample = fleet.gauges.latest(view.id) if view.state.shown == "running" else None
    return {
        "id": view.id,
        "name": short(view.id),
        "template": view.alias or short(view.template),
        "state": view.state.value,
        "cpu": EMPTY if sample is None else f"{sample.cpu:.2f}",
        "memory": EMPTY if sample is None else size(sample.memory),
        "processes": EMPTY if sample is None else sample.processes,
        "started": clock(view.started),
        "ends": EMPTY if view.end is None or view.state.shown == "paused" else clock(round(view.end)),
        "metadata": _shown(list(view.metadata.items())),
    }


def _shown(pairs: Sequence[tuple[str, str]]) -> str:
    text = ", ".join(f"{key}={value}" for key, value in pairs[:3])
    return text[:80]
