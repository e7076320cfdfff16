"""Snapshots with memory: what is said to the agent and when, what is kept, and that a failure at any step leaves nothing behind."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from tests.node.conftest import Recorder
from tests.node.memory_doubles import DISK, NOTHING, RememberingBackend, RememberingMachine, born, kept, machine, well

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState, NotFound, StorageFull
from agentenv.images.files import allocated_bytes
from agentenv.isolation.contract import Resources
from agentenv.node import Node, NodeSandbox, SandboxRequest


async def test_a_snapshot_tells_the_agent_stands_still_and_goes_on(memory_node: Node, holder: NodeSandbox) -> None:
    snapshot = await holder.snapshot("one")
    assert (snapshot.memory, snapshot.backend, snapshot.disk) == (True, "remembering", False)
    assert machine(holder).calls == ["pause", "checkpoint", "resume"]
    assert machine(holder).told == ["freeze", "thaw"]
    assert machine(holder).said[0][1]["disk"] is False
    assert kept(memory_node) == {**NOTHING, "tree": [f"{snapshot.id}.json"], "layers": list(snapshot.layers), "memory": [snapshot.id]}
    assert snapshot.size >= (memory_node.home / "snapshots" / "memory" / snapshot.id / "memory").stat().st_blocks * 512


async def test_files_only_needs_no_agent(memory_node: Node, holder: NodeSandbox) -> None:
    snapshot = await holder.snapshot(memory=False)
    assert not snapshot.memory
    assert machine(holder).told == []
    assert machine(holder).calls == ["pause", "resume"]
    with pytest.raises(CapabilityError, match="files only"):
        await memory_node.create(SandboxRequest(snapshot=snapshot.id, memory=True))


async def test_a_paused_sandbox_runs_for_a_moment_and_is_paused_again(memory_node: Node, holder: NodeSandbox) -> None:
    await holder.pause()
    machine(holder).calls.clear()
    await holder.snapshot()
    assert machine(holder).calls == ["resume", "pause", "checkpoint", "resume", "pause"]
    assert machine(holder).told == ["freeze", "thaw"]
    assert holder.state == "paused"


async def test_what_changed_is_counted_from_the_last_checkpoint_that_is_still_there(memory_node: Node, holder: NodeSandbox) -> None:
    first = await holder.snapshot()
    second = await holder.snapshot()
    await memory_node.delete_snapshot(second.id)
    third = await holder.snapshot()
    assert third.parent is None
    machine(holder).fail_at.add("checkpoint")
    with pytest.raises(InfrastructureError):
        await holder.snapshot()
    machine(holder).fail_at.clear()
    await holder.snapshot()
    assert machine(holder).parents == [None, first.id, None, third.id, None]
    copy = await memory_node.create(SandboxRequest(snapshot=third.id))
    await copy.snapshot()
    assert machine(copy).parents == [third.id]


async def test_a_copy_is_told_that_it_is_one_before_anybody_has_it(memory_node: Node, holder: NodeSandbox) -> None:
    snapshot = await holder.snapshot()
    machine(holder).memory = "two"
    copy = await memory_node.create(SandboxRequest(snapshot=snapshot.id))
    others = born(await holder.fork(2))
    assert [machine(one).memory for one in (copy, *others)] == ["one", "two", "two"]
    said = [machine(one).said for one in (copy, *others)]
    assert [[operation for operation, _ in words] for words in said] == [["restored"]] * 3
    facts = [words[0][1] for words in said]
    assert [fact["hostname"] for fact in facts] == [one.id for one in (copy, *others)]
    assert len({fact["entropy"] for fact in facts}) == 3
    assert all(fact["machine_id"] is None for fact in facts)  # it is in the files, and each has its own
    await holder.rollback(snapshot.id)
    assert (machine(holder).memory, holder.generation) == ("one", 2)


async def test_limits_and_environment_are_those_of_the_snapshot_where_nothing_else_is_said(
    memory_node: Node, root_tree: str, remembering: RememberingBackend
) -> None:
    before = Resources(cpu=1, memory=64 << 20, storage=1 << 30)
    sandbox = await memory_node.create(SandboxRequest(image=root_tree, resources=before, env={"A": "1", "B": "1"}))
    snapshot = await sandbox.snapshot()
    same = await memory_node.create(SandboxRequest(snapshot=snapshot.id))
    assert (same.request.resources, machine(same).told) == (before, ["restored"])
    other = await memory_node.create(SandboxRequest(snapshot=snapshot.id, resources=Resources(memory=128 << 20), env={"B": "2"}))
    assert other.request.resources == Resources(cpu=1, memory=128 << 20, storage=1 << 30)
    assert machine(other).told == ["restored", "configure"]
    assert machine(other).said[1][1]["env"] == {**other.origin.image.env, "A": "1", "B": "2"}
    fresh = await memory_node.create(SandboxRequest(snapshot=snapshot.id, memory=False))
    assert (fresh.request.resources, fresh.request.env) == (Resources(), {})


@pytest.mark.parametrize("disk", [False, True], indirect=True, ids=["trees", "disk"])
@pytest.mark.parametrize("step", ["freeze", "pause", "checkpoint", "copy", "resume", "sync", "layer", "memory", "tree"])
async def test_a_snapshot_that_fails_at_any_step_leaves_nothing(
    memory_node: Node, holder: NodeSandbox, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "made to fail")

    places = {
        "copy": ["agentenv.node.taking.copy_uppers", "agentenv.node.taking.clone_disk"],
        "sync": ["agentenv.node.keeping.sync_tree"],
        "layer": ["agentenv.node.layers.LayerStore.publish"],
        "memory": ["agentenv.node.keeping.Keeping._keep_memory"],
        "tree": ["agentenv.node.snapshots.write_durably"],
    }
    with monkeypatch.context() as patch:
        for place in places.get(step, []):
            patch.setattr(place, fail)
        machine(holder).fail_at.update({step} - places.keys())
        with pytest.raises(InfrastructureError, match=r"on purpose|made to fail"):
            await holder.snapshot()
        await asyncio.sleep(0)
    machine(holder).fail_at.clear()
    assert kept(memory_node) == NOTHING
    assert step == "resume" or well(holder)
    assert (await holder.snapshot()).memory
    assert well(holder)


async def test_a_thaw_that_fails_is_told_and_spoils_nothing(memory_node: Node, holder: NodeSandbox, recorder: Recorder) -> None:
    machine(holder).fail_at.add("thaw")
    assert (await holder.snapshot()).memory
    assert [event["id"] for event in recorder.named("sandbox.thaw_failed")] == [holder.id]


@pytest.mark.parametrize("words", [os.strerror(errno.ENOSPC), "write: no space left on device"])
async def test_a_full_disk_is_named_whoever_met_it(
    memory_node: Node, holder: NodeSandbox, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    async def full(*_: object) -> None:
        raise InfrastructureError(f"the checkpoint failed: {words}.")

    monkeypatch.setattr(RememberingMachine, "checkpoint", full)
    with pytest.raises(StorageFull, match="AGENTENV_HOME"):
        await holder.snapshot()
    assert kept(memory_node) == NOTHING
    assert well(holder)


@pytest.mark.parametrize("way", ["cancel", "kill"])
async def test_what_is_broken_off_in_the_middle_of_a_checkpoint_leaves_nothing(memory_node: Node, holder: NodeSandbox, way: str) -> None:
    gate = machine(holder).gate = asyncio.Event()
    taking = asyncio.create_task(holder.snapshot())
    await machine(holder).reached.wait()
    ending = asyncio.create_task(holder.kill()) if way == "kill" else None
    if ending is None:
        taking.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError if way == "cancel" else InvalidState):
        await taking
    if ending is not None:
        await ending
        assert kept(memory_node) == NOTHING
        return
    assert well(holder)
    assert kept(memory_node) == NOTHING


@pytest.mark.parametrize(
    "step", ["restore", "restored", "configure", "agentenv.node.starter.with_identity", "agentenv.node.spares.Spares.take"]
)
async def test_a_copy_that_fails_at_any_step_leaves_nothing(
    memory_node: Node, holder: NodeSandbox, remembering: RememberingBackend, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "made to fail")

    snapshot = await holder.snapshot()
    before = kept(memory_node)
    with monkeypatch.context() as patch:
        if "." in step:
            patch.setattr(step, fail)
        remembering.fail_at = {step}
        with pytest.raises(InfrastructureError, match=r"on purpose|made to fail"):
            await memory_node.create(SandboxRequest(snapshot=snapshot.id, env={"NEW": "1"}))
        if step != "configure":
            failed = await holder.fork(2)
            assert [type(child) for child in failed] == [InfrastructureError] * 2
            with pytest.raises(InfrastructureError):
                await holder.rollback(snapshot.id)
    remembering.fail_at = set()
    assert (holder.generation, machine(holder).memory) == (1, "one")
    assert well(holder)
    assert kept(memory_node) == before
    assert [one.ended.done() for one in remembering.machines] == [False] + [True] * (len(remembering.machines) - 1)
    await memory_node.delete_snapshot(snapshot.id)
    await holder.kill()
    assert kept(memory_node) == NOTHING


async def test_a_memory_stays_as_long_as_a_machine_came_from_it(memory_node: Node, holder: NodeSandbox, home: Path) -> None:
    snapshot = await holder.snapshot()
    copy = await memory_node.create(SandboxRequest(snapshot=snapshot.id))
    await memory_node.delete_snapshot(snapshot.id)
    async with await Node.open(home) as other:
        assert (await other.collect_garbage()).layers == 0
    assert kept(memory_node)["memory"] == [snapshot.id]
    await copy.kill()
    assert kept(memory_node)["memory"] == []
    with pytest.raises(NotFound):
        await holder.rollback(snapshot.id)


@pytest.mark.parametrize("disk", [True], indirect=True)
async def test_a_disk_takes_the_place_of_the_one_before(memory_node: Node, holder: NodeSandbox, remembering: RememberingBackend) -> None:
    first = await holder.snapshot(memory=False)
    assert (first.disk, len(first.layers)) == (True, 1)
    assert machine(holder).said[0] == ("freeze", {"disk": True, "seconds": machine(holder).said[0][1]["seconds"]})
    with pytest.raises(CapabilityError, match=r"disk without a limit; .* Leave"):
        await memory_node.create(SandboxRequest(snapshot=first.id, resources=Resources(storage=1)))
    copy = await memory_node.create(SandboxRequest(snapshot=first.id))
    theirs = machine(copy).spec.directory / "upper" / DISK
    assert theirs.read_text() == "a file"
    theirs.write_text("another")
    second = await copy.snapshot(memory=False)
    assert len(second.layers) == 1
    (child,) = born(await copy.fork(1, memory=False))
    assert (machine(child).spec.directory / "upper" / DISK).read_text() == "another"
    assert machine(child).told == []
    assert (await copy.usage()).storage == allocated_bytes(theirs.parent)
    await copy.rollback(first.id)
    assert (machine(copy).spec.directory / "upper" / DISK).read_text() == "a file"
    assert copy.state == "running"
    remembering.disk = False
    memory_node._backends._able.clear()
    with pytest.raises(CapabilityError, match="disk of a virtual machine"):
        await memory_node.create(SandboxRequest(snapshot=first.id))


@pytest.mark.parametrize("disk", [True], indirect=True)
async def test_a_machine_with_a_disk_is_flushed_and_told_its_machine_id(memory_node: Node, holder: NodeSandbox) -> None:
    (child,) = born(await holder.fork(1))
    assert machine(holder).said[0][1]["disk"] is True
    assert len(machine(child).said[0][1]["machine_id"]) == 32
