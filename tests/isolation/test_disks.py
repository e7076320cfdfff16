"""Limits of the traffic of disks: which disk is meant, and that the kernel holds a sandbox to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.isolation.sandboxes import MIB, Yard, shell

from agentenv.errors import CapabilityError
from agentenv.isolation.contract import Resources
from agentenv.isolation.namespace import disks
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.namespace.machine import NamespaceMachine

RATES = Resources(disk_read=7 * MIB, disk_write=5 * MIB, disk_iops=300)


def group_directory(machine: NamespaceMachine) -> Path:
    """Where the kernel is told of a sandbox's disk limits."""
    hierarchy = next(hierarchy for hierarchy in CgroupTree.discover().hierarchies if "io" in hierarchy.controllers)
    return Path(hierarchy.base, machine._cgroup.name)


def numbers_of(directory: Path) -> set[int]:
    """The limits of all disks and directions that are in force."""
    names = ("io.max", *(f"blkio.throttle.{way}_{what}_device" for way in ("read", "write") for what in ("bps", "iops")))
    words = " ".join((directory / name).read_text() for name in names if (directory / name).exists()).replace("=", " ").split()
    return {int(word) for word in words if word.isdigit()}


def is_limitable(yard: Yard) -> bool:
    return "io" in CgroupTree.discover().controllers and disks.whole_disk(yard.directory) is not None


async def test_the_kernel_is_told_the_limits_and_what_runs_is_held_to_them(yard: Yard) -> None:
    if not is_limitable(yard):
        with pytest.raises(CapabilityError, match="disk traffic cannot be limited"):
            await yard.backend.start(yard.spec(resources=RATES))
        return
    machine = await yard.backend.start(yard.spec(resources=RATES))
    directory = group_directory(machine)
    assert {7 * MIB, 5 * MIB, 300} <= numbers_of(directory)
    held = set((directory / "cgroup.procs").read_text().split())
    assert {str(pid) for pid in machine.processes()} <= held
    await machine.resize(Resources(disk_write=6 * MIB))
    assert {7 * MIB, 6 * MIB, 300} <= numbers_of(directory)
    assert 5 * MIB not in numbers_of(directory)
    assert await shell(machine, "head -c 100000 /dev/zero > /root/x && sync /root/x && wc -c < /root/x") == "100000\n"
    await machine.kill()
    assert not directory.exists()


async def test_without_a_limit_no_hierarchy_is_entered_for_it(machine: NamespaceMachine) -> None:
    deferred = [Path(hierarchy.base, machine._cgroup.name) for hierarchy in CgroupTree.discover().hierarchies if hierarchy.deferred]
    assert not any(path.exists() for path in deferred)


async def test_files_on_no_disk_cannot_be_limited(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "whole_disk", lambda _: None)
    with pytest.raises(CapabilityError, match="lies on no disk"):
        await yard.backend.start(yard.spec(resources=RATES))
    assert yard.leftovers() == {"processes": [], "cgroups": []}


def test_a_memory_file_system_has_no_disk_and_a_partition_is_its_whole_disk() -> None:
    assert disks.whole_disk(Path("/proc")) is None
    disk = disks.whole_disk(Path("/"))
    assert disk is None or not Path(f"/sys/dev/block/{disk}/partition").exists()
