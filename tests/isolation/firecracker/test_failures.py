"""What goes wrong with checkpoints and starts: each is one clear error, and nothing is left of the machine that was to be."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.isolation.firecracker.conftest import open_yard
from tests.isolation.firecracker.machines import MEMORY, VmYard, counted, counts_beyond, find_programs

from agentenv.errors import BackendUnavailable, CapabilityError, InfrastructureError
from agentenv.isolation.firecracker.counter import write_kernel
from agentenv.isolation.firecracker.jail import STATE
from agentenv.isolation.firecracker.launcher import Launcher
from agentenv.isolation.firecracker.snapshot import FILE
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.vm import memory_layers as memory

SMALL_DISK = 8 << 20


@pytest.fixture
async def checkpoint(vms: VmYard) -> Path:
    vm = await vms.boot()
    await counts_beyond(vm, 1)
    await vm.pause()
    directory = await vms.checkpoint(vm)
    await vm.kill()
    return directory


def note(checkpoint: Path, **changes: object) -> None:
    told = msgspec.json.decode((checkpoint / FILE).read_bytes(), type=dict[str, object])
    (checkpoint / FILE).write_bytes(msgspec.json.encode(told | changes))


def cut(path: Path, size: int) -> None:
    path.chmod(0o600)
    os.truncate(path, size)


async def test_a_truncated_memory(vms: VmYard, checkpoint: Path) -> None:
    cut(checkpoint / memory.WHOLE, 1 << 20)
    with pytest.raises(InfrastructureError, match="1048576 bytes instead of 16777216: it was cut off"):
        await vms.load(checkpoint)
    assert vms.leftovers() == []


@pytest.mark.parametrize("size", [0, 16_000])
async def test_a_truncated_state(vms: VmYard, checkpoint: Path, size: int) -> None:
    cut(checkpoint / STATE, size)
    with pytest.raises(InfrastructureError, match="Firecracker refused PUT /snapshot/load"):
        await vms.load(checkpoint)
    assert vms.leftovers() == []


async def test_a_damaged_state(vms: VmYard, checkpoint: Path) -> None:
    state = checkpoint / STATE
    state.chmod(0o600)
    content = bytearray(state.read_bytes())
    content[8_000] ^= 0xFF
    state.write_bytes(content)
    with pytest.raises(InfrastructureError, match="Firecracker refused PUT /snapshot/load"):
        await vms.load(checkpoint)
    assert vms.leftovers() == []


@pytest.mark.parametrize("name", [FILE, memory.WHOLE, STATE])
async def test_a_missing_file(vms: VmYard, checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    with pytest.raises(InfrastructureError, match=r"holds no|cannot be put into its jail: No such file or directory"):
        await vms.load(checkpoint)
    assert vms.leftovers() == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"snapshot_format": [99, 0, 0], "firecracker": "9.9.9"},
            r"made by Firecracker 9\.9\.9 \(state format 99\.0\.0\); this machine has",
        ),
        ({"cpu": "GenuineIntel 6/1 (Other), features 0"}, r"made on another processor \(GenuineIntel 6/1 \(Other\), features 0\)"),
        ({"cpu": "Other 6/1", "cpu_template": "T2"}, "made on another processor"),
        ({"format": 99}, "has format 99; this AgentENV reads 1"),
    ],
)
async def test_a_checkpoint_of_elsewhere(vms: VmYard, checkpoint: Path, changes: dict[str, object], said: str) -> None:
    note(checkpoint, **changes)
    with pytest.raises(CapabilityError, match=said):
        await vms.load(checkpoint)


async def test_facts_that_are_none(vms: VmYard, checkpoint: Path) -> None:
    (checkpoint / FILE).write_text("{")
    with pytest.raises(InfrastructureError, match="holds no whole Firecracker checkpoint"):
        await vms.load(checkpoint)


@contextmanager
def disk(place: Path, size: int, *options: str) -> Iterator[Path]:
    """A disk of so many bytes at `place`."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.fixture
async def small_disk(tmp_path: Path) -> AsyncIterator[VmYard]:
    """Its jails lie on a disk that is nearly full."""
    find_programs()
    with disk(tmp_path / "disk", SMALL_DISK) as place:
        async for yard in open_yard(place, jailed=True):
            yield yard


async def test_a_full_disk_in_the_middle_of_a_snapshot(small_disk: VmYard) -> None:
    yard = small_disk
    vm = await yard.boot(kernel=write_kernel(yard.new("kernel"), pages=3000), memory=64)
    await counts_beyond(vm, 1)
    await vm.pause()
    with pytest.raises(InfrastructureError, match="No space left on device"):
        await yard.checkpoint(vm)
    assert [list(path.iterdir()) for path in yard.directory.glob("checkpoint*")] == [[]]
    await vm.resume()
    await counts_beyond(vm, counted(vm))
    await vm.pause()
    grow(yard, 128 << 20)
    whole = await yard.checkpoint(vm)
    assert memory.whole(whole, 64 << 20).stat().st_blocks * 512 >= 64 << 20  # not the rest of what was being written
    await vm.kill()
    assert yard.leftovers() == []


def grow(yard: VmYard, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", yard.directory.parent], check=True)


async def test_a_full_disk_where_the_checkpoint_goes(vms: VmYard, tmp_path: Path) -> None:
    with disk(tmp_path / "full", 64 << 10) as place:
        vm = await vms.boot()
        await counts_beyond(vm, 1)
        await vm.pause()
        with pytest.raises(InfrastructureError, match="No space left on device"):
            await vm.checkpoint(place)
        assert list(place.iterdir()) == []
        await vm.kill()
    assert vms.leftovers() == []


@pytest.mark.parametrize("jailed", [True, False])
async def test_a_program_that_ends_at_once(tmp_path: Path, jailed: bool) -> None:
    programs = find_programs(jailed=jailed)
    broken = tmp_path / "firecracker"
    broken.write_text("#!/bin/sh\necho no such luck\nexit 3\n")
    broken.chmod(0o755)
    owner = tmp_path / "owner"
    owner.mkdir()
    launcher = await Launcher.open(replace(programs, firecracker=broken), CgroupTree.discover(), owner)
    with pytest.raises(InfrastructureError, match="before it answered; it had printed: "):
        await launcher.launch()
    yard = VmYard(launcher, owner, broken)
    await launcher.close()
    assert yard.leftovers() == []


async def test_a_place_where_no_jail_can_have_devices(tmp_path: Path) -> None:
    programs = find_programs()
    with disk(tmp_path / "disk", SMALL_DISK, "nodev") as place:
        with pytest.raises(BackendUnavailable, match="mounted `nodev`") as caught:
            await Launcher.open(programs, CgroupTree.discover(), place)
        assert "AGENTENV_FIRECRACKER_JAIL=off" in (caught.value.remedy or "")
        assert list(place.iterdir()) == []


async def test_a_launch_that_is_given_up(vms: VmYard) -> None:
    for steps in range(12):
        launching = asyncio.ensure_future(vms.launcher.launch())
        for _ in range(steps):
            await asyncio.sleep(0)
        launching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await launching
    assert vms.leftovers() == []
    vm = await vms.boot(memory=MEMORY)
    await vm.kill()


async def given_up(work: Coroutine[object, object, object], steps: int) -> bool:
    """Whether it was cancelled before its end, after so many turns of the loop and a moment for the threads."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0.0005)
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


async def test_a_restore_that_is_given_up_at_any_moment(vms: VmYard, checkpoint: Path) -> None:
    broken_off = 0
    for steps in range(0, 40, 4):
        known = set(vms.leftovers())
        task = vms.load(checkpoint)
        if await given_up(task, steps):
            broken_off += 1
            assert set(vms.leftovers()) == known
    assert broken_off
    vm = await vms.load(checkpoint)
    await counts_beyond(vm, 1)


async def test_a_checkpoint_that_is_given_up_leaves_an_empty_directory(vms: VmYard) -> None:
    vm = await vms.boot()
    await counts_beyond(vm, 1)
    await vm.pause()
    directory = vms.new("checkpoint")
    directory.mkdir()
    assert await given_up(vm.checkpoint(directory), 1)
    assert list(directory.iterdir()) == []
    await vm.resume()
    await counts_beyond(vm, counted(vm))
    await vm.pause()
    again = await vms.checkpoint(vm)
    child = await vms.load(again)
    await counts_beyond(child, counted(vm))
    await asyncio.gather(vm.kill(), child.kill())
    assert vms.leftovers() == []
