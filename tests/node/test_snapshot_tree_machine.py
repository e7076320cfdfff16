"""The tree of snapshots against a model: any order of writing, snapshots, rollbacks, forks, deletions and deaths, over two nodes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.node.doubles import OpenBackend, OpenMachine

from agentenv.errors import InvalidState
from agentenv.node import Node, NodeSandbox, SandboxRequest

Result = TypeVar("Result")
Files = dict[str, str]
NAME = st.sampled_from(["a", "b", "dir/a", "dir/b"])
PICK = st.integers(0, 99)


class SnapshotTreeMachine(RuleBasedStateMachine):
    """The model knows the files of each sandbox and snapshot, and the parent of each snapshot; nothing about layers."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.around = Path(tempfile.mkdtemp())
        (self.around / "tree/bin").mkdir(parents=True)
        self.image = f"dir:{self.around}/tree"
        self.opening = patch("agentenv.node.starter.open_backend", self.open_backend)
        self.opening.start()
        self.nodes = [self.do(Node.open(self.around / "home")) for _ in range(2)]
        self.sandboxes: dict[str, NodeSandbox] = {}
        self.files: dict[str, Files] = {}
        self.snapshots: dict[str, tuple[Files, str | None]] = {}
        self.heads: dict[str, str | None] = {}

    async def open_backend(self, name: str, owner_dir: Path) -> OpenBackend:
        return OpenBackend()

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if not hasattr(self, "nodes"):
            return
        for node in self.nodes:
            self.do(node.close())
        assert list((self.around / "home/owners").iterdir()) == []
        self.opening.stop()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.around)

    def pick(self, number: int) -> NodeSandbox:
        return list(self.sandboxes.values())[number % len(self.sandboxes)]

    def pick_snapshot(self, number: int) -> str:
        return list(self.snapshots)[number % len(self.snapshots)]

    def adopt(self, sandbox: NodeSandbox, files: Files, head: str | None) -> None:
        self.sandboxes[sandbox.id] = sandbox
        self.files[sandbox.id] = dict(files)
        self.heads[sandbox.id] = head

    @rule(which=st.integers(0, 1))
    def create(self, which: int) -> None:
        self.adopt(self.do(self.nodes[which].create(SandboxRequest(image=self.image))), {}, None)

    @precondition(lambda self: self.snapshots)
    @rule(which=st.integers(0, 1), number=PICK)
    def create_from_snapshot(self, which: int, number: int) -> None:
        snapshot = self.pick_snapshot(number)
        self.adopt(self.do(self.nodes[which].create(SandboxRequest(snapshot=snapshot))), self.snapshots[snapshot][0], snapshot)

    @precondition(lambda self: self.sandboxes)
    @rule(number=PICK, name=NAME, content=st.sampled_from(["x", "y", "a longer text"]))
    def write(self, number: int, name: str, content: str) -> None:
        sandbox = self.pick(number)
        machine_of(sandbox).write(name, content)
        self.files[sandbox.id][name] = content

    @precondition(lambda self: self.sandboxes)
    @rule(number=PICK, name=NAME)
    def remove(self, number: int, name: str) -> None:
        sandbox = self.pick(number)
        if self.files[sandbox.id].pop(name, None) is not None:
            machine_of(sandbox).remove(name)

    @precondition(lambda self: self.sandboxes)
    @rule(number=PICK, paused=st.booleans())
    def snapshot(self, number: int, paused: bool) -> None:
        sandbox = self.pick(number)
        if paused:
            self.do(sandbox.pause())
        taken = self.do(sandbox.snapshot())
        head = self.heads[sandbox.id]
        assert taken.parent == (head if head in self.snapshots else None)
        self.snapshots[taken.id] = (dict(self.files[sandbox.id]), taken.parent)
        self.heads[sandbox.id] = taken.id
        if paused:
            self.do(sandbox.resume())

    @precondition(lambda self: self.sandboxes and self.snapshots)
    @rule(number=PICK, to=PICK)
    def rollback(self, number: int, to: int) -> None:
        sandbox, snapshot = self.pick(number), self.pick_snapshot(to)
        before = sandbox.generation
        self.do(sandbox.rollback(snapshot))
        assert sandbox.generation == before + 1
        self.files[sandbox.id] = dict(self.snapshots[snapshot][0])
        self.heads[sandbox.id] = snapshot

    @precondition(lambda self: self.sandboxes)
    @rule(number=PICK, count=st.integers(1, 3))
    def fork(self, number: int, count: int) -> None:
        sandbox = self.pick(number)
        for child in self.do(sandbox.fork(count)):
            assert isinstance(child, NodeSandbox)
            self.adopt(child, self.files[sandbox.id], self.heads[sandbox.id])

    @precondition(lambda self: self.sandboxes)
    @rule(number=PICK, by_itself=st.booleans())
    def end(self, number: int, by_itself: bool) -> None:
        sandbox = self.pick(number)
        if by_itself:
            machine_of(sandbox).die("it died")
            self.do(sandbox.wait())
        else:
            self.do(sandbox.kill())
        del self.sandboxes[sandbox.id]

    @precondition(lambda self: self.snapshots)
    @rule(which=st.integers(0, 1), number=PICK)
    def delete(self, which: int, number: int) -> None:
        snapshot = self.pick_snapshot(number)
        has_children = any(parent == snapshot for _, parent in self.snapshots.values())
        try:
            self.do(self.nodes[which].delete_snapshot(snapshot))
        except InvalidState:
            assert has_children
        else:
            assert not has_children
            del self.snapshots[snapshot]

    @rule(which=st.integers(0, 1))
    def collect_garbage(self, which: int) -> None:
        self.do(self.nodes[which].collect_garbage())

    @rule()
    def reopen_a_node(self) -> None:
        """Everything of the first node ends; what snapshots keep survives."""
        self.do(self.nodes[0].close())
        self.nodes[0] = self.do(Node.open(self.around / "home"))
        self.sandboxes = {name: sandbox for name, sandbox in self.sandboxes.items() if sandbox.state != "dead"}

    @invariant()
    def sandboxes_see_their_files(self) -> None:
        for name, sandbox in getattr(self, "sandboxes", {}).items():
            assert machine_of(sandbox).files() == self.files[name]

    @invariant()
    def layers_are_those_that_somebody_needs(self) -> None:
        if not hasattr(self, "nodes"):
            return
        kept = self.do(self.nodes[0].snapshots())
        assert {snapshot.id for snapshot in kept} == self.snapshots.keys()
        needed = {layer for snapshot in kept for layer in snapshot.layers}
        used = {layer for sandbox in self.sandboxes.values() for layer in sandbox.origin.layers.ids}
        present = {path.name for path in (self.around / "home/snapshots/layers").iterdir()}
        assert needed | used <= present
        # One process's last user may leave a layer to another's: that is for the next collection.
        self.do(self.nodes[1].collect_garbage())
        assert {path.name for path in (self.around / "home/snapshots/layers").iterdir()} == needed | used

    @invariant()
    def lists_agree(self) -> None:
        for node in getattr(self, "nodes", []):
            assert {record.id for record in node.list()} == self.sandboxes.keys()


def machine_of(sandbox: NodeSandbox) -> OpenMachine:
    assert isinstance(sandbox.machine, OpenMachine)
    return sandbox.machine


TestSnapshotTree = SnapshotTreeMachine.TestCase
TestSnapshotTree.settings = settings(max_examples=8, stateful_step_count=25, deadline=None)

LONG = settings(max_examples=300, stateful_step_count=50, deadline=None)


@pytest.mark.soak
class TestSnapshotTreeAtLength(SnapshotTreeMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = LONG
