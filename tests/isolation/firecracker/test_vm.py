"""The driver's core on the real Firecracker, with the tiny guest: everything that happens to a machine, whatever runs in it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.isolation.firecracker.machines import MEMORY, PAGES, VmYard, counted, counts_beyond, first_count

from agentenv.errors import InfrastructureError
from agentenv.isolation.firecracker.api import ApiError, RateLimiter, TokenBucket
from agentenv.isolation.firecracker.vm import Limits, Vm
from agentenv.isolation.vm import memory_layers as memory

PAGE = 4096
CHILDREN = 8
OUR_NETWORK = Path("/proc/self/ns/net").readlink()


def status_of(vm: Vm) -> dict[str, str]:
    text = Path(f"/proc/{vm.vmm.monitor.pid}/status").read_text()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def filters_of_threads(vm: Vm) -> set[str]:
    """The seccomp modes of its threads (proc(5)); 2 is a filter."""
    tasks = Path(f"/proc/{vm.vmm.monitor.pid}/task").iterdir()
    return {line.split()[1] for task in tasks for line in (task / "status").read_text().splitlines() if line.startswith("Seccomp:")}


def pages_held(path: Path) -> int:
    """How many pages of a sparse file are written."""
    with path.open("rb") as file:
        return sum(end - start for start, end in memory.data_ranges(file.fileno())) // PAGE


async def test_it_counts_until_it_is_killed_and_leaves_nothing(vms: VmYard) -> None:
    vm = await vms.boot()
    assert await counts_beyond(vm, 3) > 3
    await vm.kill()
    await vm.kill()
    assert vm.vmm.monitor.ended is not None
    assert vm.vmm.monitor.ended.signal == signal.SIGKILL
    assert vms.leftovers() == []


async def test_the_jailer_gives_it_a_user_a_root_and_a_network_of_its_own(vms: VmYard) -> None:
    vm, other = await vms.boot(), await vms.boot()
    process = Path(f"/proc/{vm.vmm.monitor.pid}")
    status = status_of(vm)
    assert set(status["Uid"].split()) == {str(vm.vmm.jail.user)}
    assert set(status["Gid"].split()) == {str(vm.vmm.jail.user)}
    assert vm.vmm.jail.user != other.vmm.jail.user
    assert int(status["CapEff"], 16) == 0
    assert (process / "ns/net").readlink() != OUR_NETWORK
    seen = {name.name for name in (process / "root").iterdir()}
    assert "etc" not in seen
    assert {"api", "root.img", "upper.img"} <= seen
    assert f"/{vm.vmm.cgroup.name}" in (process / "cgroup").read_text()
    await asyncio.gather(vm.kill(), other.kill())


async def test_its_own_filter_of_system_calls_stays_on(vms: VmYard) -> None:
    vm = await vms.boot()
    assert filters_of_threads(vm) == {"2"}
    assert (await vm.metrics()).seccomp_faults == 0
    await vm.kill()


async def test_without_the_jailer_it_does_the_same(free_vms: VmYard) -> None:
    vm = await free_vms.boot()
    reached = await counts_beyond(vm, 1)
    await vm.pause()
    checkpoint = await free_vms.checkpoint(vm)
    child = await free_vms.load(checkpoint)
    assert await first_count(child) >= reached
    await asyncio.gather(vm.kill(), child.kill())
    assert free_vms.leftovers() == []


async def test_paused_it_stands_still(vms: VmYard) -> None:
    vm = await vms.boot()
    await counts_beyond(vm, 1)
    await vm.pause()
    first, second = await vms.checkpoint(vm), await vms.checkpoint(vm)
    size = MEMORY << 20
    assert memory.whole(first, size).read_bytes() == memory.whole(second, size).read_bytes()
    before = counted(vm)
    await vm.resume()
    assert await counts_beyond(vm, before) > before
    await vm.kill()


async def test_a_difference_holds_only_what_was_written(vms: VmYard) -> None:
    vm = await vms.boot()
    await counts_beyond(vm, 1)
    await vm.pause()
    first = await vms.checkpoint(vm)
    assert PAGES < pages_held(first / memory.WHOLE) < PAGES + 100  # the guest's, and what Firecracker puts there for any guest
    await vm.resume()
    await counts_beyond(vm, counted(vm))
    await vm.pause()
    second = await vms.checkpoint(vm, first)
    third = await vms.checkpoint(vm)
    assert [path.name for path in memory.layers(second)] == ["memory.00", "memory.01"]
    assert 0 < pages_held(second / "memory.01") < 20
    assert memory.layers(third) == [third / memory.WHOLE]
    size = MEMORY << 20
    assert memory.whole(second, size).read_bytes() == memory.whole(third, size).read_bytes()
    await vm.kill()


async def test_differences_to_another_than_the_last_checkpoint_are_written_whole(vms: VmYard) -> None:
    vm = await vms.boot()
    await vm.pause()
    first = await vms.checkpoint(vm)
    await vms.checkpoint(vm, first)
    third = await vms.checkpoint(vm, first)
    assert memory.layers(third) == [third / memory.WHOLE]
    assert pages_held(third / memory.WHOLE) == (MEMORY << 20) // PAGE
    await vm.kill()


async def test_a_parent_that_is_damaged_is_done_without(vms: VmYard) -> None:
    vm = await vms.boot()
    await vm.pause()
    first = await vms.checkpoint(vm)
    (first / "agentenv.json").write_text("{")
    second = await vms.checkpoint(vm, first)
    assert memory.layers(second) == [second / memory.WHOLE]
    assert await vms.load(second)
    await vm.kill()


async def test_eight_children_go_on_counting_each_for_itself(vms: VmYard) -> None:
    parent = await vms.boot()
    await counts_beyond(parent, 5)
    await parent.pause()
    reached = counted(parent)
    checkpoint = await vms.checkpoint(parent)
    children = await asyncio.gather(*(vms.load(checkpoint, resume=False) for _ in range(CHILDREN)))
    for number, child in enumerate(children):
        await child.resume()
        first = await first_count(child)
        assert reached <= first <= reached + 2
        await counts_beyond(child, first + number)
    assert counted(parent) == reached
    await asyncio.gather(parent.kill(), *(child.kill() for child in children))
    assert vms.leftovers() == []


async def test_a_child_is_written_down_by_its_differences_to_what_it_came_from(vms: VmYard) -> None:
    parent = await vms.boot()
    await counts_beyond(parent, 2)
    await parent.pause()
    first = await vms.checkpoint(parent)
    await parent.kill()
    child = await vms.load(first)
    reached = await counts_beyond(child, counted(parent))
    await child.pause()
    second = await vms.checkpoint(child, first)
    assert 0 < pages_held(second / "memory.01") < 20
    grandchild = await vms.load(second)
    assert await first_count(grandchild) >= reached
    await asyncio.gather(child.kill(), grandchild.kill())


async def test_balloon_limits_and_metrics(vms: VmYard) -> None:
    vm = await vms.boot()
    await counts_beyond(vm, 1)
    await vm.resize_balloon(4)
    assert (await vm.balloon()).target_mib == 4
    bucket = TokenBucket(1 << 20, 1000)
    await vm.limit(Limits(disk=RateLimiter(bandwidth=bucket, ops=TokenBucket(100, 1000))))
    await vm.limit(Limits())  # lifts it
    assert (await vm.metrics()).disk_written == 0
    await vm.kill()


async def test_a_request_that_is_refused_says_why(vms: VmYard) -> None:
    vm = await vms.boot()
    with pytest.raises(ApiError, match="Firecracker refused PATCH /balloon") as caught:
        await vm.resize_balloon(MEMORY * 10)
    assert caught.value.status == 400
    with pytest.raises(ApiError, match="Firecracker refused PUT /snapshot/create"):
        await vms.checkpoint(vm)  # it runs
    await vm.kill()


async def test_a_wrong_kernel_is_one_error_and_leaves_nothing(vms: VmYard) -> None:
    wrong = vms.new("kernel")
    wrong.write_text("not a kernel")
    with pytest.raises(InfrastructureError, match="kernel"):
        await vms.boot(kernel=wrong)
    with pytest.raises(InfrastructureError, match="cannot be put into its jail: No such file or directory"):
        await vms.boot(kernel=vms.new("nowhere"))
    assert vms.leftovers() == []


async def test_killed_from_outside_it_frees_all(vms: VmYard) -> None:
    vm = await vms.boot()
    os.kill(vm.vmm.monitor.pid, signal.SIGKILL)
    assert (await vm.vmm.monitor.wait()).signal == signal.SIGKILL
    with pytest.raises(InfrastructureError, match="Firecracker cannot be asked"):
        await vm.pause()
    await vm.kill()
    assert vms.leftovers() == []


async def test_the_owner_closes_with_machines_running(vms: VmYard) -> None:
    vm = await vms.boot()
    await vms.launcher.close()
    assert (await vm.vmm.monitor.wait()).signal == signal.SIGKILL
    await vm.kill()
    assert vms.leftovers() == []
