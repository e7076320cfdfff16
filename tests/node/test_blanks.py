"""Blanks: one machine boots and is written down, later ones go on from that, and nothing of a blank that is of no use is left."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.node.conftest import Recorder
from tests.node.memory_doubles import RememberingBackend, RememberingMachine, machine

from agentenv.errors import ConfigError, InfrastructureError
from agentenv.isolation.contract import MachineSpec, Resources
from agentenv.node import Node, NodeSandbox, SandboxRequest
from agentenv.node.blanks import KEPT, SWITCH, UNUSED


class BlankingBackend(RememberingBackend):
    """Its machines come up alike where their limits are the same. `restores` counts those that went on from memory."""

    def __init__(self) -> None:
        super().__init__(disk=True)
        self.restores = 0

    async def blank_key(self, spec: MachineSpec) -> str:
        return f"pids{spec.resources.pids}"

    async def restore(self, spec: MachineSpec, checkpoint: Path) -> RememberingMachine:
        self.restores += 1
        return await super().restore(spec, checkpoint)


@pytest.fixture
def blanking(monkeypatch: pytest.MonkeyPatch) -> BlankingBackend:
    backend = BlankingBackend()

    async def open_it(name: str, owner_dir: Path) -> BlankingBackend:
        return backend

    monkeypatch.setattr("agentenv.node.starter.open_backend", open_it)
    return backend


@pytest.fixture
async def blank_node(blanking: BlankingBackend, home: Path, recorder: Recorder) -> AsyncIterator[Node]:
    async with await Node.open(home, events=recorder) as node:
        yield node


def _blanks(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "snapshots" / "blanks").iterdir())


async def _create(node: Node, image: str, pids: int = 1) -> NodeSandbox:
    return await node.create(SandboxRequest(image=image, resources=Resources(pids=pids), env={"ONLY": "mine"}))


async def test_the_first_boots_as_nobody_and_becomes_itself_when_it_is_written_down(blank_node: Node, root_tree: str, home: Path) -> None:
    first = await _create(blank_node, root_tree)
    started = machine(first)
    assert (started.spec.hostname, dict(started.spec.env)) == ("sandbox", {})
    assert started.calls == ["pause", "checkpoint", "resume"]
    assert started.told == ["freeze", "restored", "configure"]
    words = dict(started.said)
    assert words["restored"]["hostname"] == first.id
    assert words["restored"]["hooks"] is False
    assert words["configure"]["env"]["ONLY"] == "mine"
    assert _blanks(home) == ["pids1"]
    assert {"blank", "restored"} <= {stage.name for stage in first.timings}


async def test_others_at_the_same_moment_wait_for_it_and_go_on_from_it(blank_node: Node, blanking: BlankingBackend, root_tree: str) -> None:
    sandboxes = await asyncio.gather(*(_create(blank_node, root_tree) for _ in range(8)))
    assert blanking.restores == 7
    words = [dict(machine(sandbox).said) for sandbox in sandboxes]
    assert len({word["restored"]["machine_id"] for word in words}) == 8
    assert len({word["restored"]["entropy"] for word in words}) == 8
    assert [word["restored"]["hostname"] for word in words] == [sandbox.id for sandbox in sandboxes]


async def test_another_make_boots_for_itself(blank_node: Node, blanking: BlankingBackend, root_tree: str, home: Path) -> None:
    await _create(blank_node, root_tree, 1)
    await _create(blank_node, root_tree, 2)
    assert (blanking.restores, _blanks(home)) == (0, ["pids1", "pids2"])


@pytest.mark.parametrize("step", ["restore", "restored"])
async def test_a_blank_of_no_use_is_removed_and_the_machine_boots(
    blank_node: Node, blanking: BlankingBackend, root_tree: str, home: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await _create(blank_node, root_tree)
    restore = blanking.restore

    async def damaged(spec: MachineSpec, checkpoint: Path) -> RememberingMachine:
        if step == "restore":
            raise InfrastructureError("its memory was cut off")
        started = await restore(spec, checkpoint)
        started.fail_at.add(step)
        return started

    monkeypatch.setattr(blanking, "restore", damaged)
    sandbox = await _create(blank_node, root_tree)
    assert sandbox.state == "running"
    assert machine(sandbox).spec.hostname == sandbox.id
    assert (sandbox.directory / "upper" / "disk.img").read_text() == "empty"
    assert len(recorder.named("blank.refused")) == 1
    assert _blanks(home) == []


@pytest.mark.parametrize("step", ["freeze", "pause", "checkpoint"])
async def test_a_machine_that_cannot_be_written_down_is_handed_out(
    blank_node: Node, blanking: BlankingBackend, root_tree: str, home: Path, recorder: Recorder, step: str
) -> None:
    blanking.fail_at = {step}
    sandbox = await _create(blank_node, root_tree)
    assert sandbox.state == "running"
    assert machine(sandbox).told[-2:] == ["restored", "configure"]
    assert [event["id"] for event in recorder.named("blank.failed")] == ["pids1"]
    assert _blanks(home) == []
    assert list((blank_node.owner.directory / "staging").iterdir()) == []


async def test_a_first_that_does_not_start_leaves_the_next_to_boot(
    blank_node: Node, blanking: BlankingBackend, root_tree: str, home: Path
) -> None:
    blanking.fail_at = {"start"}
    with pytest.raises(InfrastructureError, match="start failed on purpose"):
        await _create(blank_node, root_tree)
    blanking.fail_at = set()
    assert (await _create(blank_node, root_tree)).state == "running"
    assert _blanks(home) == ["pids1"]


async def test_the_oldest_go_when_there_are_too_many_but_not_under_a_machine(blank_node: Node, root_tree: str, home: Path) -> None:
    await _create(blank_node, root_tree, 99)
    user = await _create(blank_node, root_tree, 99)
    os.utime(home / "snapshots" / "blanks" / "pids99", (1.0, 1.0))
    for number in range(1, KEPT + 2):
        await _create(blank_node, root_tree, number)
        os.utime(home / "snapshots" / "blanks" / f"pids{number}", (time.time() - 100 + number,) * 2)
    await blank_node.collect_garbage()
    assert "pids99" in _blanks(home)
    assert "pids1" not in _blanks(home)
    await user.kill()
    assert "pids99" not in _blanks(home)
    assert len(_blanks(home)) == KEPT


async def test_garbage_collection_removes_what_nobody_has_used_for_long(blank_node: Node, root_tree: str, home: Path) -> None:
    await _create(blank_node, root_tree)
    await blank_node.collect_garbage()
    assert _blanks(home) == ["pids1"]
    os.utime(home / "snapshots" / "blanks" / "pids1", (time.time() - UNUSED - 1.0,) * 2)
    report = await blank_node.collect_garbage()
    assert (report.layers, _blanks(home)) == (1, [])


async def test_they_can_be_switched_off(
    blanking: BlankingBackend, home: Path, recorder: Recorder, root_tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "off")
    async with await Node.open(home, events=recorder) as node:
        sandbox = await _create(node, root_tree)
        assert (machine(sandbox).told, machine(sandbox).spec.hostname) == ([], sandbox.id)
        assert _blanks(home) == []


async def test_a_switch_that_is_none_is_refused(blank_node: Node, root_tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "perhaps")
    with pytest.raises(ConfigError, match="AGENTENV_BLANKS is 'perhaps'"):
        await _create(blank_node, root_tree)
