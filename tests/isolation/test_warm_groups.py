"""Cgroups made in advance: ready when asked for, never used twice, none left."""

from __future__ import annotations

import asyncio
import os

import pytest

from agentenv.errors import InfrastructureError
from agentenv.isolation.namespace.cgroups import Cgroup, CgroupTree
from agentenv.isolation.namespace.warm_groups import WarmGroups

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making cgroups at the top of the hierarchies needs root")


def _owner() -> str:
    return f"warm{os.getpid()}"


def _mine(tree: CgroupTree) -> list[str]:
    return [name for name in tree.names() if _owner() in name]


async def test_one_that_waits_is_taken_and_another_made(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = CgroupTree.discover()
    refilled = asyncio.Event()
    add_one = WarmGroups.add_one

    def add_and_tell(self: WarmGroups) -> None:
        add_one(self)
        refilled.set()

    groups = WarmGroups(tree, _owner())
    groups.add_one()
    (waiting,) = groups.ready
    first, second = groups.take(), groups.take()
    assert first.name == waiting != second.name
    assert groups.ready == ()
    monkeypatch.setattr(WarmGroups, "add_one", add_and_tell)
    await refilled.wait()
    assert len(groups.ready) == 1
    assert set(groups.ready).isdisjoint({first.name, second.name})
    first.remove()
    second.remove()
    groups.close()
    groups.close()
    assert _mine(tree) == []


async def test_there_are_only_a_few() -> None:
    tree = CgroupTree.discover()
    groups = WarmGroups(tree, _owner())
    for _ in range(20):
        groups.add_one()
    assert len(groups.ready) == len(_mine(tree)) == 4
    groups.close()
    groups.add_one()
    assert _mine(tree) == []


async def test_two_of_one_owner_do_not_meet() -> None:
    tree = CgroupTree.discover()
    one, other = WarmGroups(tree, _owner()), WarmGroups(tree, _owner())
    taken = [one.take(), other.take()]
    assert len({group.name for group in taken}) == 2
    for group in taken:
        group.remove()
    one.close()
    other.close()


async def test_a_refusal_is_told_to_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: CgroupTree, name: str) -> Cgroup:
        raise InfrastructureError("no room.")

    groups = WarmGroups(CgroupTree.discover(), _owner())
    monkeypatch.setattr(CgroupTree, "create", refuse)
    groups.add_one()
    with pytest.raises(InfrastructureError, match="no room"):
        groups.take()
    groups.close()
