"""The three set-ups of cgroups, told apart from the texts in /proc, on directories that stand in for the hierarchies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.isolation.namespace.cgroup_discovery import Hierarchy, Mount, discover, parse_memberships, parse_mounts

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
37 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
38 31 0:38 /inner /with\\040space rw,relatime - cgroup2 cgroup2 rw,nsdelegate
"""


def _v2(point: Path, controllers: str, *, handed_down: str = "", processes: str = "", root: bool = False) -> Path:
    point.mkdir(parents=True)
    texts = {"cgroup.controllers": controllers, "cgroup.subtree_control": handed_down, "cgroup.procs": processes}
    for name, text in (texts if root else texts | {"cgroup.type": "domain\n"}).items():
        (point / name).write_text(text)
    return point


def _v1(point: Path) -> Path:
    point.mkdir(parents=True)
    (point / "cgroup.procs").write_text("")
    return point


def _mount(point: Path, kind: str, options: str = "rw", root: str = "/") -> str:
    return f"1 2 0:1 {root} {point} rw - {kind} {kind} {options}\n"


def test_mountinfo_is_read_with_escapes_and_optional_fields() -> None:
    assert parse_mounts(HYBRID) == (
        Mount(1, "/", "/sys/fs/cgroup/cpu,cpuacct", frozenset({"rw", "cpu", "cpuacct"})),
        Mount(1, "/", "/sys/fs/cgroup/systemd", frozenset({"rw", "name=systemd"})),
        Mount(2, "/inner", "/with space", frozenset()),
    )


def test_memberships_are_read_per_controller() -> None:
    text = "9:name=systemd:/\n4:cpu,cpuacct:/a:b\n0::/user.slice\n"
    assert parse_memberships(text) == {"name=systemd": "/", "cpu": "/a:b", "cpuacct": "/a:b", "": "/user.slice"}


@given(st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    assert all(mount.version in (1, 2) for mount in parse_mounts(text))
    assert all(isinstance(group, str) for group in parse_memberships(text).values())


def test_version_2_alone_serves_everything(tmp_path: Path) -> None:
    base = _v2(tmp_path / "cg", "cpuset cpu io memory pids", root=True)
    found = discover(_mount(base, "cgroup2"), "0::/\n")
    assert found.hierarchies == (Hierarchy(2, str(base), frozenset({"cpu", "io", "memory", "pids"})),)
    assert found.lost == ()


def test_version_1_alone_freezes_and_accounts_by_its_own_hierarchies(tmp_path: Path) -> None:
    names = ("memory", "cpu", "cpuacct", "pids", "blkio", "freezer")
    points = {name: _v1(tmp_path / name) for name in names}
    found = discover("".join(_mount(point, "cgroup", f"rw,{name}") for name, point in points.items()), "")
    assert {next(iter(hierarchy.controllers)) for hierarchy in found.hierarchies} == {"memory", "cpu", "cpuacct", "pids", "io", "freezer"}
    assert found.lost == (
        "a sandbox is frozen and killed process by process, and its pressure (PSI) is unknown: no cgroup v2 hierarchy is mounted.",
    )


def test_controllers_that_share_a_hierarchy_share_a_directory(tmp_path: Path) -> None:
    both = _v1(tmp_path / "cpu,cpuacct")
    found = discover(_mount(both, "cgroup", "rw,cpu,cpuacct"), "")
    assert found.hierarchies == (Hierarchy(1, str(both), frozenset({"cpu", "cpuacct"})),)


def test_the_hybrid_limits_through_1_and_senses_through_2(tmp_path: Path) -> None:
    unified, memory = _v2(tmp_path / "unified", "hugetlb", root=True), _v1(tmp_path / "memory")
    found = discover(_mount(unified, "cgroup2") + _mount(memory, "cgroup", "rw,memory"), "0::/\n4:memory:/\n")
    assert found.hierarchies == (Hierarchy(2, str(unified), frozenset()), Hierarchy(1, str(memory), frozenset({"memory"})))
    assert [sentence.partition(":")[0] for sentence in found.lost] == [
        "processor time cannot be limited",
        "the number of processes cannot be limited",
        "disk traffic cannot be shared out or limited",
    ]


def test_a_group_with_processes_of_its_own_cannot_hand_controllers_down(tmp_path: Path) -> None:
    base = _v2(tmp_path / "cg", "memory pids", handed_down="pids", processes="17\n")
    found = discover(_mount(base, "cgroup2"), "0::/\n")
    assert found.hierarchies == (Hierarchy(2, str(base), frozenset({"pids"})),)
    assert found.lost[0].startswith(f"memory cannot be limited: the controller cannot be handed down from {base} because processes live")


def test_the_highest_writable_group_on_our_own_way_is_taken(tmp_path: Path) -> None:
    top = tmp_path / "cg"
    top.mkdir()
    (top / "user.slice").mkdir()
    delegated = _v2(top / "user.slice/user@1000.service", "memory pids", handed_down="memory pids")
    _v2(delegated / "app.slice", "memory", handed_down="")
    found = discover(_mount(top, "cgroup2"), "0::/user.slice/user@1000.service/app.slice\n")
    assert found.hierarchies[0] == Hierarchy(2, str(delegated), frozenset({"memory", "pids"}))


def test_a_container_that_shows_only_its_own_group_is_searched_from_there(tmp_path: Path) -> None:
    shown = tmp_path / "cg"
    shown.mkdir()
    own = _v2(shown / "job", "memory")
    found = discover(_mount(shown, "cgroup2", root="/docker/abc"), "0::/docker/abc/job\n")
    assert found.hierarchies[0].base == str(own)
    outside = discover(_mount(shown, "cgroup2", root="/docker/abc"), "0::/elsewhere\n")
    assert outside.hierarchies == ()


def test_nothing_mounted_is_one_clear_sentence() -> None:
    assert discover("", "") == discover("31 23 0:28 / /sys rw - sysfs sysfs rw\n", "")
    assert discover("", "").lost == ("no cgroup file system is mounted: a sandbox has no limits of its own and cannot be paused.",)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_hierarchy_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    memory = _v1(tmp_path / "memory")
    memory.chmod(0o555)
    found = discover(_mount(memory, "cgroup", "rw,memory"), "")
    assert f"memory cannot be limited: {memory} is not writable for user {os.geteuid()}." in found.lost
