"""Pausing to the disk: nothing runs meanwhile, any process can let it go on or end it, and a failure at any step changes nothing."""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path

import pytest
from tests.node.memory_doubles import NOTHING, RememberingBackend, kept, machine, well

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState, NotFound
from agentenv.isolation.contract import Resources
from agentenv.node import Node, NodeSandbox, SandboxRequest
from agentenv.node.lifetime import Lifetime


async def test_a_sandbox_rests_on_the_disk_and_goes_on(memory_node: Node, holder: NodeSandbox) -> None:
    before = machine(holder)
    await holder.pause(to_disk=True)
    await holder.pause(to_disk=True)
    assert before.ended.done()
    assert not before.spec.directory.exists()
    assert (holder.state, [record.state for record in memory_node.list()]) == ("hibernated", ["hibernated"])
    assert kept(memory_node)["hibernated"] == [holder.id]
    for refused in (holder.snapshot(), holder.fork(1), holder.usage(), holder.resize(Resources(cpu=1)), holder.set_lifetime(1)):
        with pytest.raises(InvalidState, match="paused to the disk"):
            await refused
    await holder.resume()
    assert (holder.state, holder.generation, machine(holder).memory) == ("running", 2, "one")
    assert machine(holder).files() == {"file": "a file"}
    assert machine(holder).told == ["restored"]
    assert kept(memory_node)["hibernated"] == []
    await holder.kill()
    assert kept(memory_node) == NOTHING


async def test_it_outlives_its_process_and_another_takes_it_over(
    remembering: RememberingBackend,
    home: Path,
    root_tree: str,
) -> None:
    first = await Node.open(home)
    made = await first.create(SandboxRequest(image=root_tree, metadata={"kind": "one"}, lifetime=500))
    machine(made).memory = "kept"
    parent = await made.snapshot()
    await made.pause(to_disk=True)
    await first.close()
    async with await Node.open(home) as second:
        await second.collect_garbage()
        (record,) = second.list()
        assert (record.id, record.owner, record.state, record.metadata) == (made.id, "", "hibernated", {"kind": "one"})
        taken = second.adopt(made.id)
        await taken.resume()
        assert (machine(taken).memory, taken.generation, taken.created) == ("kept", 2, made.created)
        assert (await taken.snapshot()).parent == parent.id
        assert [(record.state, record.owner) for record in second.list()] == [("running", second.owner.id)]
        with pytest.raises(NotFound):
            second.adopt("sbnone")


async def test_whoever_comes_second_is_told(memory_node: Node, holder: NodeSandbox, home: Path) -> None:
    await holder.pause(to_disk=True)
    async with await Node.open(home) as other:
        taken = other.adopt(holder.id)
        await taken.resume()
        with pytest.raises(InvalidState, match="another process"):
            await holder.resume()
        await holder.wait()
        assert taken.state == "running"
        assert [record.state for record in memory_node.list()] == ["running"]
        await taken.pause(to_disk=True)
        await other.kill(taken.id)
    assert kept(memory_node) == NOTHING


async def test_only_one_lets_it_go_on(memory_node: Node, holder: NodeSandbox, home: Path, remembering: RememberingBackend) -> None:
    await holder.pause(to_disk=True)
    async with await Node.open(home) as other:
        taken = other.adopt(holder.id)
        outcomes = await asyncio.gather(holder.resume(), taken.resume(), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["InvalidState", "NoneType"]
        assert len([one for one in remembering.machines if not one.ended.done()]) == 1


@pytest.mark.parametrize("by", ["owner", "other"])
async def test_it_can_be_killed_where_it_rests(memory_node: Node, holder: NodeSandbox, home: Path, by: str) -> None:
    await holder.pause(to_disk=True)
    if by == "owner":
        await holder.kill()
    else:
        async with await Node.open(home) as other:
            await other.kill(holder.id)
        with pytest.raises(InvalidState, match="another process"):
            holder.require_alive()
        await holder.wait()
    assert kept(memory_node) == NOTHING
    assert memory_node.list() == []


@pytest.mark.parametrize("step", ["freeze", "pause", "checkpoint", "layer", "record", "kill"])
async def test_a_pause_that_fails_changes_nothing(
    memory_node: Node,
    holder: NodeSandbox,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "made to fail")

    places = {"layer": "agentenv.node.layers.LayerStore.publish", "record": "agentenv.node.hibernated.write_durably"}
    with monkeypatch.context() as patch:
        if step in places:
            patch.setattr(places[step], fail)
        machine(holder).fail_at.update({step} - places.keys())
        with pytest.raises(InfrastructureError, match=r"on purpose|made to fail"):
            await holder.pause(to_disk=True)
    if step == "kill":  # all is on the disk by then
        assert holder.state == "hibernated"
        await holder.resume()
    assert kept(memory_node)["hibernated"] == kept(memory_node)["staging"] == []
    assert well(holder)
    machine(holder).fail_at.clear()
    await holder.pause(to_disk=True)
    await holder.resume()
    assert machine(holder).memory == "one"


async def test_a_return_that_fails_leaves_it_on_the_disk(
    memory_node: Node,
    holder: NodeSandbox,
    remembering: RememberingBackend,
) -> None:
    await holder.pause(to_disk=True)
    before = kept(memory_node)
    for step in ("restore", "restored"):
        remembering.fail_at = {step}
        with pytest.raises(InfrastructureError, match="on purpose"):
            await holder.resume()
        assert (holder.state, holder.generation) == ("hibernated", 1)
        assert kept(memory_node) == before
    remembering.fail_at = set()
    await holder.resume()
    assert machine(holder).memory == "one"


async def test_a_killed_pause_leaves_nothing(memory_node: Node, holder: NodeSandbox) -> None:
    gate = machine(holder).gate = asyncio.Event()
    pausing = asyncio.create_task(holder.pause(to_disk=True))
    await machine(holder).reached.wait()
    ending = asyncio.create_task(holder.kill())
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises((InvalidState, InfrastructureError)):
        await pausing
    await ending
    assert kept(memory_node) == NOTHING


async def test_the_lifetime_stands_still_on_the_disk(memory_node: Node, root_tree: str) -> None:
    sandbox = await memory_node.create(SandboxRequest(image=root_tree, lifetime=100))
    await sandbox.pause(to_disk=True)
    (record,) = memory_node.list()
    assert record.expires is None
    await sandbox.resume()
    (record,) = memory_node.list()
    assert record.expires is not None
    assert 0 < record.expires - time.time() <= 100


async def test_what_is_left_of_a_lifetime() -> None:
    lifetime = Lifetime(lambda _: None)
    assert lifetime.left is None
    lifetime.set(50)
    assert lifetime.left is not None
    assert 0 < lifetime.left <= 50
    lifetime.cancel()
    assert lifetime.left is None


async def test_where_memory_cannot_be_written_down_who_could_is_named(
    memory_node: Node,
    holder: NodeSandbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentenv.node.sandbox.NodeSandbox.memory_obstacle", "it cannot.")
    with pytest.raises(CapabilityError, match=r"it cannot\. (Use `isolation: |No backend of this machine can)"):
        await holder.pause(to_disk=True)
    assert well(holder)
