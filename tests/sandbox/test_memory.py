"""Snapshots with memory: what ran goes on in every copy, from the same moment, and apart from then on. On each backend that can do it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conditions import more_in_soak
from tests.machines import obtain_or_skip, runsc_or_skip, shared_store, small_root
from tests.sandbox.conftest import real_node

from agentenv.errors import CapabilityError, InvalidState, NotFound
from agentenv.isolation import probe_all
from agentenv.isolation.contract import Timeouts
from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox

PATIENT = Timeouts(startup=240.0)
"""For machines without a processor that runs them, beside other tests."""

COUNTER = "n=0; while :; do n=$((n+1)); [ ! -e /root/say ] || read said < /root/say; echo $n $said > /tmp/count; sleep 0.01; done"
BACKENDS = more_in_soak(["gvisor"], ["qemu", "firecracker"])


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small image that every backend can start."""
    return f"dir:{small_root(tmp_path_factory.mktemp('image') / 'root')}"


@dataclass
class Counting:
    """A sandbox in which a shell counts in its memory; `pid` is its number."""

    sandbox: AsyncSandbox
    pid: int


@pytest.fixture(params=BACKENDS)
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend that can write memory down and works here."""
    name = str(request.param)
    if name in ("qemu", "firecracker"):
        obtain_or_skip("kernel")
        obtain_or_skip(name)
        monkeypatch.setenv("AGENTENV_ARTEFACTS", str(shared_store().directory))
    else:
        runsc_or_skip(monkeypatch)
    found = next((probe for probe in probe_all() if probe.backend == name), None)
    if found is None or not found.usable:
        pytest.skip(f"no {name} here: {found.reason if found else 'not installed'}")
    assert found.capabilities.memory_snapshot
    return name


@pytest.fixture
async def counting(node: Node, image: str, isolation: str) -> AsyncIterator[Counting]:
    async with await AsyncSandbox.create(image, isolation=isolation, node=node, timeouts=PATIENT) as sandbox:
        await sandbox.files.write("/root/file", "the same")
        handle = await sandbox.commands.run(["bash", "-c", COUNTER], background=True)
        await reached(sandbox, 10)
        yield Counting(sandbox, handle.pid)


async def count(sandbox: AsyncSandbox) -> int:
    """How far the counter has come; 0 where there is none."""
    return (await told(sandbox))[0]


async def told(sandbox: AsyncSandbox) -> tuple[int, str]:
    """How far the counter has come, and what it was given to say."""
    while True:
        result = await sandbox.commands.run("cat /tmp/count")
        number, _, said = result.stdout.strip().partition(" ")
        if number or result.exit_code:  # it is empty in the moment in which it is written
            return int(number or 0), said


async def reached(sandbox: AsyncSandbox, number: int) -> int:
    """Waits until the counter has come so far, and returns how far that is."""
    while (now := await count(sandbox)) < number:
        continue
    return now


def born(children: list[AsyncSandbox | Exception]) -> list[AsyncSandbox]:
    assert all(isinstance(child, AsyncSandbox) for child in children), children
    return [child for child in children if isinstance(child, AsyncSandbox)]


async def identity(sandbox: AsyncSandbox) -> tuple[str, ...]:
    """What must differ between two sandboxes: host name, machine id, what the kernel draws at random."""
    random = await sandbox.commands.run(
        "dd if=/dev/urandom of=/tmp/random bs=32 count=1 2>/dev/null; hostname; cat /etc/hostname /etc/machine-id"
    )
    hostname, also, machine_id = random.stdout.split()
    assert hostname == also == sandbox.id
    return machine_id, bytes(await sandbox.files.read("/tmp/random", format="bytes")).hex()


async def test_three_children_go_on_counting_see_the_file_and_diverge(counting: Counting) -> None:
    parent = counting.sandbox
    at_least = await count(parent)
    children = born(await parent.fork(3))  # type: ignore[arg-type]
    for number, child in enumerate(children):
        assert await child.files.read("/root/file") == "the same"
        assert await count(child) >= at_least
        await child.files.write("/root/say", f"child {number}\n")
        await child.files.write("/root/file", f"of {number}")
    for number, child in enumerate(children):
        await reached(child, await count(child) + 1)
        while (said := (await told(child))[1]) != f"child {number}":
            assert said == ""
        assert await child.files.read("/root/file") == f"of {number}"
    assert await parent.files.read("/root/file") == "the same"
    await reached(parent, await count(parent) + 1)
    await asyncio.gather(*(child.kill() for child in children))


async def test_copies_differ_in_all_that_names_them_and_have_the_right_time(counting: Counting) -> None:
    family = [counting.sandbox, *born(await counting.sandbox.fork(2))]  # type: ignore[arg-type]
    machine_ids, randoms = zip(*[await identity(one) for one in family], strict=True)
    assert len(set(machine_ids)) == len(set(randoms)) == 3
    for one in family[1:]:
        before = time.time()
        told = float((await one.commands.run("date +%s.%N")).stdout)
        assert before - 0.05 <= told <= time.time() + 0.05
        await one.kill()


async def test_going_back_to_any_node_of_the_tree_brings_its_counter_back(counting: Counting) -> None:
    sandbox = counting.sandbox
    first = await sandbox.snapshot()
    assert first.memory
    assert first.size > 0
    early = await count(sandbox)
    await sandbox.files.write("/root/file", "later")
    late = await reached(sandbox, early + 50)
    second = await sandbox.snapshot()
    assert second.parent == first.id
    await sandbox.rollback(first)
    assert sandbox.generation == 2
    assert await count(sandbox) < late
    assert await sandbox.files.read("/root/file") == "the same"
    await sandbox.rollback(second.id)
    assert await count(sandbox) >= late
    assert await sandbox.files.read("/root/file") == "later"


async def test_a_command_that_was_waited_for_runs_on_in_a_copy_and_can_be_found_there(counting: Counting, node: Node) -> None:
    sandbox = counting.sandbox
    waiting = asyncio.create_task(sandbox.commands.run('while [ ! -e /root/go ]; do sleep 0.01; done; echo "went $HOME"'))
    while len(known := await sandbox.commands.list()) < 2:
        continue
    pid = next(entry.pid for entry in known if entry.pid != counting.pid)
    snapshot = await sandbox.snapshot()
    async with await AsyncSandbox.create(snapshot=snapshot, env={"GIVEN": "anew"}, node=node, timeouts=PATIENT) as copy:
        assert {entry.pid for entry in await copy.commands.list()} == {counting.pid, pid}
        handle = await copy.commands.connect(pid)
        await copy.files.write("/root/go", "")
        assert (await handle.wait()).stdout == "went /root\n"
        assert (await copy.commands.run("echo $GIVEN")).stdout == "anew\n"
        assert await copy.commands.kill(counting.pid)
    assert not waiting.done()
    await sandbox.files.write("/root/go", "")
    assert (await waiting).stdout == "went /root\n"


@pytest.mark.soak
async def test_a_snapshot_with_memory_also_gives_its_files_only(counting: Counting, node: Node, isolation: str) -> None:
    both, only = f"both-{isolation}", f"files-{isolation}"
    snapshot = await counting.sandbox.snapshot(both)
    async with await AsyncSandbox.create(snapshot=both, memory=False, isolation=isolation, node=node, timeouts=PATIENT) as fresh:
        assert await fresh.files.read("/root/file") == "the same"
        assert await count(fresh) == 0
        with pytest.raises(CapabilityError, match="cannot go on from it"):
            await AsyncSandbox.create(snapshot=both, isolation="namespace", node=node, timeouts=PATIENT)
        files = await fresh.snapshot(only, memory=False)
        assert not files.memory
        with pytest.raises(CapabilityError, match="files only"):
            await AsyncSandbox.create(snapshot=only, memory=True, node=node, timeouts=PATIENT)
        with pytest.raises(CapabilityError, match="files only"):
            await fresh.rollback(only, memory=True)
        (child,) = born(await fresh.fork(1, memory=False))  # type: ignore[arg-type]
        assert await child.files.read("/root/file") == "the same"
        await child.rollback(both)
        assert await count(child) > 0
        await child.kill()
    await counting.sandbox.rollback(snapshot, memory=False)
    assert await count(counting.sandbox) == 0


@pytest.mark.soak
async def test_memory_goes_with_its_snapshot_once_nobody_maps_it(counting: Counting, node: Node) -> None:
    kept = set((node.home / "snapshots" / "memory").iterdir())
    snapshot = await counting.sandbox.snapshot()
    memory = node.home / "snapshots" / "memory" / snapshot.id
    copy = await AsyncSandbox.create(snapshot=snapshot, node=node, timeouts=PATIENT)
    await node.delete_snapshot(snapshot.id)
    await node.collect_garbage()
    assert memory.is_dir()
    (grandchild,) = born(await copy.fork(1))  # type: ignore[arg-type]
    await copy.kill()
    assert not memory.exists()
    at = await count(grandchild)
    await reached(grandchild, at + 1)
    await grandchild.kill()
    assert set(memory.parent.iterdir()) == kept
    with pytest.raises(NotFound):
        await AsyncSandbox.create(snapshot=snapshot, node=node, timeouts=PATIENT)


async def test_a_sandbox_is_paused_to_the_disk_and_goes_on(counting: Counting, node: Node) -> None:
    sandbox = counting.sandbox
    assert sandbox.capabilities.memory_snapshot
    waiting = asyncio.create_task(sandbox.commands.run("sleep 1000"))
    while len(await sandbox.commands.list()) < 2:
        continue
    at_least = await count(sandbox)
    await sandbox.pause(to_disk=True)
    assert (sandbox.state, [info.state for info in await AsyncSandbox.list(node=node)]) == ("hibernated", ["hibernated"])
    with pytest.raises(InvalidState, match="paused to the disk while this ran"):
        await waiting
    with pytest.raises(InvalidState, match="is paused to the disk"):
        await sandbox.commands.run("true")
    await sandbox.resume()
    assert sandbox.generation == 2
    assert await count(sandbox) >= at_least
    await reached(sandbox, at_least + 20)
    assert await sandbox.files.read("/root/file") == "the same"
    assert await sandbox.commands.kill(counting.pid)


@pytest.mark.soak
async def test_another_process_takes_over_what_was_paused_to_the_disk(home: Path, image: str, isolation: str) -> None:
    async with real_node(home) as first:
        sandbox = await AsyncSandbox.create(image, isolation=isolation, node=first, timeouts=PATIENT)
        await sandbox.files.write("/root/file", "left")
        await sandbox.pause(to_disk=True)
    async with real_node(home) as second:
        again = await AsyncSandbox.connect(sandbox.id, node=second)
        assert again.state == "hibernated"
        await again.resume()
        assert await again.files.read("/root/file") == "left"
        await again.kill()
        assert await AsyncSandbox.list(node=second) == []


async def test_what_cannot_be_written_down_is_not_paused_to_the_disk(node: Node, image: str) -> None:
    if not any(probe.backend == "namespace" and probe.usable for probe in probe_all()):
        pytest.skip("no namespaces here")
    async with await AsyncSandbox.create(image, isolation="namespace", node=node, timeouts=PATIENT) as sandbox:
        assert not sandbox.capabilities.memory_snapshot
        with pytest.raises(CapabilityError, match="cannot write memory down"):
            await sandbox.pause(to_disk=True)
        assert (await sandbox.commands.run("echo on")).stdout == "on\n"
        snapshot = await sandbox.snapshot()
        assert not snapshot.memory
        with pytest.raises(CapabilityError, match="cannot write memory down"):
            await sandbox.fork(1, memory=True)
