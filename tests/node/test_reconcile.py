"""After a kill -9: the next start of anybody leaves nothing of the dead, and touches nothing of the living."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from agentenv.errors import NotFound
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.node import Node, SandboxRequest
from agentenv.node.keeper import create_detached

OWNER = """
import asyncio, pathlib, sys
from agentenv.node import Node, SandboxRequest

async def main():
    node = await Node.open(pathlib.Path(sys.argv[1]))
    first = await node.create(SandboxRequest())
    snapshot = await first.snapshot("kept") if sys.argv[2] == "snapshot" else None
    children = await first.fork(2)
    print(node.owner.id, *(sandbox.machine.pid for sandbox in (first, *children)), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


LEAVES_A_GROUP = """
from agentenv.isolation.namespace.cgroups import CgroupTree, group_name
print(CgroupTree.discover().create(group_name("ogone", "m1")).name)
"""


async def start_owner(home: Path, how: str = "plain") -> tuple[asyncio.subprocess.Process, str, list[int]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(home), how, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    owner, *pids = await first_line(process.stdout)
    return process, owner, [int(pid) for pid in pids]


async def first_line(stream: asyncio.StreamReader) -> list[str]:
    """The owner's own line, after whatever the log printed before."""
    while True:
        words = (await stream.readline()).decode().split()
        assert words, "the owner ended before it had sandboxes"
        if len(words) == 4 and words[0].startswith("o") and all(word.isdigit() for word in words[1:]):
            return words


async def has_ended(pid: int) -> None:
    """Returns when that process is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    await ended.wait()
    loop.remove_reader(descriptor)
    os.close(descriptor)


@pytest.mark.usefixtures("node")
async def test_nothing_stays_of_a_killed_owner(home: Path) -> None:
    process, owner, pids = await start_owner(home, "snapshot")
    process.kill()
    await process.wait()
    for pid in pids:
        await has_ended(pid)
    async with await Node.open(home) as survivor:
        assert owner not in {path.name for path in (home / "owners").iterdir()}
        assert not CgroupTree.discover().by_owner().get(owner)
        assert survivor.list() == []
        assert [snapshot.name for snapshot in await survivor.snapshots()] == ["kept"]
        layers = {path.name for path in (home / "snapshots/layers").iterdir()}
        assert layers == {layer for snapshot in await survivor.snapshots() for layer in snapshot.layers}


async def test_what_is_left_of_an_owner_whose_home_was_deleted_goes_at_the_next_start_of_anybody(home: Path, node: Node) -> None:
    await node.create(SandboxRequest())
    left = await asyncio.create_subprocess_exec(sys.executable, "-c", LEAVES_A_GROUP, stdout=asyncio.subprocess.PIPE)
    name = (await left.communicate())[0].decode().strip()
    assert name in CgroupTree.discover().names()
    mine = CgroupTree.discover().by_owner()[node.owner.id]
    async with await Node.open(home):
        assert name not in CgroupTree.discover().names()
        assert CgroupTree.discover().by_owner()[node.owner.id] == mine


async def test_a_living_neighbour_is_left_alone(home: Path, node: Node) -> None:
    mine = await node.create(SandboxRequest())
    process, owner, _ = await start_owner(home)
    async with await Node.open(home) as third:
        assert {record.owner for record in third.list()} == {owner, node.owner.id}
    process.kill()
    await process.wait()
    async with await Node.open(home) as fourth:
        assert [record.id for record in fourth.list()] == [mine.id]
    await mine.pause()
    await mine.resume()


@pytest.mark.usefixtures("node")
async def test_a_detached_sandbox_outlives_who_wished_for_it_and_dies_from_outside(home: Path) -> None:
    record = await create_detached(SandboxRequest(lifetime=600), home)
    async with await Node.open(home) as other:
        assert [found.id for found in other.list()] == [record.id]
        with pytest.raises(NotFound, match="Did you mean"):
            await other.kill(record.id[:-1])
        await other.kill(record.id)
        assert other.list() == []
        with pytest.raises(NotFound):
            await other.kill(record.id)
    await has_ended(record.owner_pid)
    assert not record.directory.exists()


@pytest.mark.usefixtures("node")
async def test_a_keeper_ends_in_order_when_it_is_asked_to(home: Path) -> None:
    record = await create_detached(SandboxRequest(), home)
    os.kill(record.owner_pid, signal.SIGTERM)
    await has_ended(record.owner_pid)
    assert not (home / "owners" / record.owner).exists()


@pytest.mark.usefixtures("node")
async def test_a_keeper_passes_its_failure_on(home: Path) -> None:
    with pytest.raises(NotFound, match="no image 'nonsense'"):
        await create_detached(SandboxRequest(image="nonsense"), home)


async def test_the_owner_learns_who_killed_its_sandbox(home: Path, node: Node) -> None:
    sandbox = await node.create(SandboxRequest())
    async with await Node.open(home) as other:
        await other.kill(sandbox.id)
    await sandbox.wait()
    assert sandbox.failure is not None
    assert f"killed from outside, by process {os.getpid()}" in str(sandbox.failure)


async def test_a_paused_sandbox_can_be_killed_from_outside(home: Path, node: Node) -> None:
    sandbox = await node.create(SandboxRequest())
    await sandbox.pause()
    async with await Node.open(home) as other:
        await other.kill(sandbox.id)
    await sandbox.wait()
    assert sandbox.state == "dead"
