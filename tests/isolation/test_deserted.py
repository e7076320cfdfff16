"""Cgroups whose makers are gone are removed by anybody; those of the living, wherever they live, are not."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentenv.errors import InfrastructureError
from agentenv.isolation.namespace.cgroups import CgroupTree, group_name, maker_of
from agentenv.isolation.namespace.deserted import remove_deserted
from agentenv.isolation.namespace.makers import FIRST_NAMESPACE, Maker, process_namespace

MAKER = """
import sys
from agentenv.isolation.namespace.cgroups import CgroupTree, group_name
name = group_name(sys.argv[1], "m")
CgroupTree.discover().create(name)
print(name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def tree() -> CgroupTree:
    tree = CgroupTree.discover()
    try:
        tree.create(name := group_name("trial", uuid.uuid4().hex)).remove()
    except InfrastructureError as error:
        pytest.skip(error.message)
    if not tree.hierarchies:
        pytest.skip(f"no cgroups for this user: {name}")
    return tree


@contextmanager
def maker(*before: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has made a cgroup, and the cgroup's name; `before` is what it is started by."""
    command = [*before, sys.executable, "-c", MAKER, f"o{uuid.uuid4().hex[:10]}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    try:
        yield process, name
    finally:
        process.communicate()
        CgroupTree.discover().remove(name)


def test_a_name_tells_its_maker() -> None:
    assert maker_of(group_name("o-1", "m1")) == Maker.this_process()
    assert maker_of("agentenv-o1-m1") is None
    assert not Maker.this_process().is_gone()


def test_only_the_empty_groups_of_the_dead_are_removed(tree: CgroupTree) -> None:
    with maker() as (dead, empty), maker() as (other, used), maker() as (_, living):
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as inside:
            (tree.open(used).procs_files[0]).write_text(str(inside.pid))
            dead.communicate()
            other.communicate()
            nested = tree.open(empty).procs_files[0].parent / "below"
            nested.mkdir()
            removed = remove_deserted(tree)
            assert empty in removed
            assert {used, living} <= set(tree.names())
            assert empty not in tree.names()
            assert inside.poll() is None
        assert used in remove_deserted(tree)


@pytest.mark.skipif(
    os.geteuid() != 0 or process_namespace() != FIRST_NAMESPACE, reason="only root of the machine itself sees all processes"
)
def test_a_maker_in_a_container_is_left_alone_until_it_has_ended(tree: CgroupTree) -> None:
    with maker("unshare", "--pid", "--fork", "--mount-proc", "--kill-child") as (container, name):
        found = maker_of(name)
        assert found is not None
        assert found.namespace != process_namespace()
        assert name not in remove_deserted(tree)
        assert name in tree.names()
        container.communicate()
        assert name in remove_deserted(tree)


def test_whom_nobody_can_see_is_taken_to_live(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = Maker(2**22 + 1, 1, 1)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not stranger.is_gone()
