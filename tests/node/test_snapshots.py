"""Snapshots, rollback and fork: on this machine's overlayfs, and on a backend without walls where something must go wrong."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.conftest import Recorder, Run
from tests.node.doubles import OpenBackend, OpenMachine

from agentenv.errors import AgentEnvError, CapabilityError, InfrastructureError, InvalidState, NotFound, StorageFull
from agentenv.isolation.contract import MachineSpec
from agentenv.node import Node, NodeSandbox, SandboxRequest
from agentenv.node.snapshots import Snapshot, SnapshotTree


def machine_of(sandbox: NodeSandbox) -> OpenMachine:
    assert isinstance(sandbox.machine, OpenMachine)
    return sandbox.machine


def layers(node: Node) -> set[str]:
    return {path.name for path in (node.home / "snapshots" / "layers").iterdir()}


def born(children: list[NodeSandbox | AgentEnvError]) -> list[NodeSandbox]:
    """The children, when all were born."""
    assert all(isinstance(child, NodeSandbox) for child in children), children
    return [child for child in children if isinstance(child, NodeSandbox)]


async def test_a_snapshot_brings_everything_back(node: Node, run: Run) -> None:
    sandbox = await node.create(SandboxRequest())
    await run(sandbox, "mkdir -p /data/sub && echo one > /data/a && ln /data/a /data/b && ln -s a /data/link")
    await run(sandbox, "rm /etc/group && touch /usr/added && chmod 600 /data/a && mv /data/sub /data/moved && rm -r /usr/share/doc")
    snapshot = await sandbox.snapshot("first")
    await run(sandbox, "echo two > /data/a; rm -r /data/moved; touch /etc/group; rm /usr/added; mkdir /usr/share/doc")
    await sandbox.rollback("first")
    assert sandbox.generation == 2
    assert await run(sandbox, "cat /data/a /data/b; stat -c '%a %h' /data/a; readlink /data/link") == "one\none\n600 2\na\n"
    assert (
        await run(sandbox, "ls -d /data/moved /usr/added; ls /etc/group /usr/share/doc 2>/dev/null; echo") == "/data/moved\n/usr/added\n\n"
    )
    other = await node.create(SandboxRequest(snapshot=snapshot.id))
    assert await run(other, "cat /data/a; test -e /etc/group || echo gone") == "one\ngone\n"
    assert (await run(other, "hostname; cat /etc/hostname")).split() == [other.id, other.id]


async def test_an_unprepared_process_never_sees_a_half_written_file(node: Node, run: Run) -> None:
    """A writer keeps two files equal; every copy of them, taken at any moment, differs by at most the write that was under way."""
    sandbox = await node.create(SandboxRequest())
    await run(sandbox, "(i=0; while :; do i=$((i+1)); echo $i > /root/a; echo $i > /root/b; done) >/dev/null 2>&1 & sleep 0.1")
    (child,) = born(await sandbox.fork(1))
    first, second = (await run(child, "cat /root/a; echo; cat /root/b; echo")).split("\n\n")[:2]
    if first.strip() and second.strip():
        assert int(first) - int(second) in (0, 1)


async def test_children_share_one_layer_and_nothing_else(node: Node, run: Run) -> None:
    parent = await node.create(SandboxRequest(metadata={"kind": "parent"}))
    await run(parent, "echo shared > /root/file")
    children = born(await parent.fork(3))
    assert len(layers(node)) == 1
    identities = [await run(child, "hostname; cat /etc/machine-id") for child in (parent, *children)]
    assert len(set(identities)) == 4
    for number, child in enumerate(children):
        await run(child, f"echo {number} >> /root/file")
    assert [await run(child, "cat /root/file") for child in children] == [f"shared\n{number}\n" for number in range(3)]
    assert await run(parent, "cat /root/file") == "shared\n"
    assert children[0].request.metadata == {"kind": "parent"}
    await parent.kill()
    await children[0].kill()
    assert await run(children[1], "cat /root/file") == "shared\n1\n"
    (grandchild,) = born(await children[1].fork(1))
    assert len(layers(node)) == 2
    await asyncio.gather(*(child.kill() for child in children))
    assert await run(grandchild, "cat /root/file") == "shared\n1\n"
    await grandchild.kill()
    assert layers(node) == set()


async def test_a_paused_sandbox_stays_paused(open_node: Node, root_tree: str) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    machine_of(sandbox).write("file", "x")
    await sandbox.pause()
    await sandbox.snapshot()
    assert machine_of(sandbox).calls == ["pause"]
    assert sandbox.state == "paused"


async def test_nothing_new_makes_no_layer_and_equal_layers_are_one(open_node: Node, root_tree: str) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    empty = await sandbox.snapshot("empty")
    assert (empty.layers, empty.size, empty.parent) == ((), 0, None)
    machine_of(sandbox).write("big", "x" * 100_000)
    first = await sandbox.snapshot("first")
    again = await sandbox.snapshot("again")
    assert first.layers == again.layers
    assert (first.parent, again.parent, again.size) == (empty.id, first.id, 0)
    machine_of(sandbox).write("small", "y")
    more = await sandbox.snapshot("more")
    assert 0 < more.size < 50_000 < first.size
    assert len(layers(open_node)) == 2


async def test_a_child_of_a_snapshot_adds_only_its_own_layer(open_node: Node, root_tree: str) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    machine_of(sandbox).write("a", "1")
    first = await sandbox.snapshot("first")
    child = await open_node.create(SandboxRequest(snapshot="first"))
    machine_of(child).write("b", "2")
    machine_of(child).remove("a")
    second = await child.snapshot("second")
    assert second.layers[1:] == first.layers
    assert second.parent == first.id
    third = await open_node.create(SandboxRequest(snapshot="second"))
    assert machine_of(third).files() == {"b": "2"}
    assert third.request.image == root_tree


async def test_deleting_asks_for_children_and_keeps_layers_in_use(open_node: Node, root_tree: str, recorder: Recorder) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    machine_of(sandbox).write("a", "1")
    first = await sandbox.snapshot("first")
    user = await open_node.create(SandboxRequest(snapshot="first"))
    machine_of(user).write("b", "2")
    await user.snapshot("second")
    with pytest.raises(InvalidState, match="has children: second"):
        await open_node.delete_snapshot("first")
    await open_node.delete_snapshot("second")
    await open_node.delete_snapshot(first.id)
    assert layers(open_node) == set(first.layers)
    assert machine_of(user).files() == {"a": "1", "b": "2"}
    await user.kill()
    assert layers(open_node) == set()
    with pytest.raises(NotFound, match="no snapshot 'first'"):
        await open_node.delete_snapshot("first")
    assert [event["name"] for event in recorder.named("snapshot.deleted")] == ["second", "first"]


async def test_a_snapshot_whose_parent_was_deleted_meanwhile_has_none(open_node: Node, root_tree: str) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    machine_of(sandbox).write("a", "1")
    await sandbox.snapshot("first")
    await open_node.delete_snapshot("first")
    assert (await sandbox.snapshot("second")).parent is None


@pytest.mark.parametrize("name", ["", "-x", ".x", "a/b", "a b", "x" * 65, "snabcdefghij23", "ä"])
async def test_names_are_checked_before_anything_stands_still(open_node: Node, root_tree: str, name: str) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    with pytest.raises(InvalidState, match="cannot be a snapshot's name"):
        await sandbox.snapshot(name)
    assert machine_of(sandbox).calls == []


async def test_names_are_unique_over_all_processes(open_node: Node, root_tree: str, home: Path) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    await sandbox.snapshot("taken")
    async with await Node.open(home) as other:
        stranger = await other.create(SandboxRequest(image=root_tree))
        with pytest.raises(InvalidState, match="a snapshot 'taken' already"):
            await stranger.snapshot("taken")
        with pytest.raises(NotFound, match="Did you mean 'taken'"):
            await stranger.rollback("tken")


async def test_one_of_two_snapshots_of_one_name_wins(open_node: Node, root_tree: str) -> None:
    first = await open_node.create(SandboxRequest(image=root_tree))
    second = await open_node.create(SandboxRequest(image=root_tree))
    results = await asyncio.gather(first.snapshot("same"), second.snapshot("same"), return_exceptions=True)
    assert sorted(isinstance(result, InvalidState) for result in results) == [False, True]
    assert len(await open_node.snapshots()) == 1


@pytest.mark.parametrize("broken", ["pause", "resume"])
async def test_a_sandbox_goes_on_whatever_fails(open_node: Node, root_tree: str, broken: str) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    machine_of(sandbox).write("a", "1")
    machine_of(sandbox).fail_at.add(broken)
    with pytest.raises(InfrastructureError, match="on purpose"):
        await sandbox.snapshot("x")
    assert machine_of(sandbox).calls == ["pause", "resume"]
    assert layers(open_node) == set()
    assert await open_node.snapshots() == []
    await sandbox.kill()


async def test_a_cancelled_snapshot_leaves_it_running(open_node: Node, root_tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    for number in range(50):
        machine_of(sandbox).write(f"dir/{number}", "x" * 1000)
    working = asyncio.create_task(sandbox.snapshot("x"))
    await asyncio.sleep(0.002)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert machine_of(sandbox).calls.count("pause") == machine_of(sandbox).calls.count("resume")
    assert (await sandbox.snapshot("y")).name == "y"


async def test_a_snapshot_that_is_given_up_when_it_is_written_down_is_deleted(
    open_node: Node, root_tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    machine_of(sandbox).write("a", "1")
    loop, add, given_up = asyncio.get_running_loop(), SnapshotTree.add, threading.Event()

    def add_and_give_up(tree: SnapshotTree, snapshot: Snapshot) -> None:
        add(tree, snapshot)
        loop.call_soon_threadsafe(working.cancel)
        loop.call_soon_threadsafe(given_up.set)
        assert given_up.wait(10)

    with monkeypatch.context() as patched:
        patched.setattr(SnapshotTree, "add", add_and_give_up)
        working = asyncio.create_task(sandbox.snapshot("x"))
        with pytest.raises(asyncio.CancelledError):
            await working
    assert await open_node.snapshots() == []
    assert (await sandbox.snapshot("x")).name == "x"


async def test_a_kill_breaks_a_copy_off(open_node: Node, root_tree: str) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    for number in range(300):
        machine_of(sandbox).write(f"dir/{number}", "x" * 1000)
    working = asyncio.create_task(sandbox.fork(2))
    await asyncio.sleep(0.001)
    await sandbox.kill()
    with pytest.raises(AgentEnvError):
        await working
    assert layers(open_node) == set()


async def test_a_fork_tells_of_each_child_by_itself(open_node: Node, backend: OpenBackend, root_tree: str) -> None:
    parent = await open_node.create(SandboxRequest(image=root_tree))
    machine_of(parent).write("a", "1")
    backend.failures += [InfrastructureError("unlucky"), InfrastructureError("unlucky")]
    children = await parent.fork(5)
    assert sorted(isinstance(child, NodeSandbox) for child in children) == [False, False, True, True, True]
    with pytest.raises(InvalidState, match="makes no sense"):
        await parent.fork(0)
    for child in children:
        if isinstance(child, NodeSandbox):
            await child.kill()
    assert layers(open_node) == set()


async def test_a_cancelled_fork_leaves_no_child(
    open_node: Node, backend: OpenBackend, root_tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = await open_node.create(SandboxRequest(image=root_tree))
    machine_of(parent).write("a", "1")
    start, under_way = backend.start, asyncio.Event()

    async def slow(spec: MachineSpec) -> OpenMachine:
        if len(backend.machines) > 2:
            under_way.set()
            await asyncio.Event().wait()
        return await start(spec)

    monkeypatch.setattr(backend, "start", slow)
    forking = asyncio.create_task(parent.fork(6))
    await under_way.wait()
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking
    assert [record.id for record in open_node.list()] == [parent.id]
    assert layers(open_node) == set()


async def test_a_rollback_that_does_not_start_leaves_everything(open_node: Node, backend: OpenBackend, root_tree: str) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    machine_of(sandbox).write("a", "1")
    await sandbox.snapshot("first")
    machine_of(sandbox).write("a", "2")
    backend.failures.append(InfrastructureError("no"))
    with pytest.raises(InfrastructureError, match="no"):
        await sandbox.rollback("first")
    assert (sandbox.state, sandbox.generation) == ("running", 1)
    assert machine_of(sandbox).files() == {"a": "2"}
    await sandbox.rollback("first")
    assert machine_of(sandbox).files() == {"a": "1"}
    assert [machine.ended.done() for machine in backend.machines] == [True, False]
    assert [record.generation for record in open_node.list()] == [2]


async def test_another_base_is_refused(open_node: Node, root_tree: str, tmp_path: Path) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    machine_of(sandbox).write("a", "1")
    await sandbox.snapshot("first")
    (tmp_path / "tree").rename(tmp_path / "old")
    with pytest.raises(NotFound, match="snapshot first cannot be used"):
        async with await Node.open(open_node.home) as other:
            await other.create(SandboxRequest(snapshot="first"))
    (tmp_path / "tree/bin").mkdir(parents=True)
    with pytest.raises(CapabilityError, match="was made on dir:"):
        async with await Node.open(open_node.home) as other:
            await other.create(SandboxRequest(snapshot="first"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """40 MB, of which the kernel says when they are full."""
    if os.geteuid() != 0:
        pytest.skip("a small disk needs a mount, which needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.usefixtures("backend")
async def test_a_full_disk_is_storage_full_and_the_sandbox_goes_on(small_disk: Path, root_tree: str) -> None:
    async with await Node.open(small_disk / "home") as node:
        sandbox = await node.create(SandboxRequest(image=root_tree))
        machine_of(sandbox).write("big", "x" * (22 << 20))
        with pytest.raises(StorageFull, match=r"no room left .* on the disk of AGENTENV_HOME") as caught:
            await sandbox.snapshot("x")
        # The figures are those of the moment, before what had been copied was removed.
        assert caught.value.limit == 40 << 20
        assert caught.value.limit - caught.value.used < 1 << 20
        assert "AGENTENV_HOME to a larger disk" in (caught.value.remedy or "")
        with pytest.raises(StorageFull, match="no room left"):
            await sandbox.fork(2)
        assert machine_of(sandbox).calls == ["pause", "resume"] * 2
        await node.collect_garbage()
        machine_of(sandbox).write("more", "x" * (4 << 20))
        with pytest.raises(StorageFull):
            await node.create(SandboxRequest(image=root_tree))
        assert layers(node) == set()
        await sandbox.kill()
        await node.collect_garbage()
        assert (await node.create(SandboxRequest(image=root_tree))).state == "running"
