"""How snapshots and sandboxes are put into trees."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from agentenv.isolation.contract import Resources
from agentenv.node.snapshots import Snapshot
from agentenv.server.catalogue import Template
from agentenv.server.dashboard.lineage import Branch, arrange
from agentenv.server.fleet import Lifecycle, NetworkRules, SandboxView, State

BASE = SandboxView(
    "root", "t", State.RUNNING, "base", "b", "base", "", "", "localhost", 1.0, None, None, Lifecycle(), NetworkRules(), Resources(),
    MappingProxyType({}), MappingProxyType({}), "user", None, None, None, None,
)  # fmt: skip


def snapshot(identifier: str, parent: str | None, *, memory: bool = False) -> Snapshot:
    return Snapshot(identifier, None, parent, "host", "", {}, (), 1.0, 0, memory=memory)


def template(identifier: str, source: str, created: float) -> Template:
    return Template(identifier, "t", "snapshot", identifier, False, source, created, created)


def shape(branches: list[Branch]) -> list[object]:
    return [(branch.id, shape(branch.children)) if branch.children else branch.id for branch in branches]


def test_a_snapshot_hangs_under_the_nearest_one_before_it() -> None:
    node = {one.id: one for one in (snapshot("s1", None), snapshot("between", "s1"), snapshot("s2", "between"))}
    named = [template("first", "root", 2.0), template("second", "root", 3.0)]
    found = arrange({"root": BASE}, {"first": "s1", "second": "s2"}, node, named, "root")
    assert shape(found) == [("root", [("first", ["second"])])]


def test_forks_hang_under_their_sandbox_and_the_present_one_is_marked() -> None:
    child = replace(BASE, id="child", parent="root", started=2.0, state=State.PAUSED)
    found = arrange({"root": BASE, "child": child}, {}, {}, [], "child")
    assert shape(found) == [("root", ["child"])]
    assert [found[0].current, found[0].children[0].current] == [False, True]
    assert found[0].children[0].state == "paused"


def test_what_came_of_a_sandbox_that_is_gone_stands_by_itself() -> None:
    child = replace(BASE, id="child", parent="gone")
    node = {"s": snapshot("s", None, memory=True)}
    found = arrange({"child": child}, {"kept": "s"}, node, [template("kept", "gone", 3.0)], "child")
    assert shape(found) == ["child", "kept"]
    assert found[1].memory


def test_a_snapshot_whose_layers_are_gone_is_left_out() -> None:
    assert shape(arrange({"root": BASE}, {"lost": "s"}, {}, [template("lost", "root", 2.0)], "root")) == ["root"]
