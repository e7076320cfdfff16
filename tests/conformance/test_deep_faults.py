"""Faults below a backend, in what the node does for it, are found too: each by the check that is there for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conditions import needs_namespaces
from tests.conformance.conftest import Bench
from tests.machines import debian_or_skip, shared_cache

from agentenv.conformance import CHECKS, aside, forks, open_subject
from agentenv.conformance.resident import start_resident
from agentenv.egress import rules
from agentenv.egress.guard import Guard
from agentenv.egress.policy import EgressPolicy
from agentenv.errors import InfrastructureError
from agentenv.isolation.conformance import CheckFailed, NotApplicable, Outcome, Verdict, select
from agentenv.isolation.gvisor import backend as gvisor
from agentenv.isolation.gvisor.checkpoint import FILE, Facts
from agentenv.node import agent_words, branching, network_policy, taking
from agentenv.node.trash import Trash

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="networks and mounts of its own need root")


def _outcome(bench: Callable[[str], Bench], backend: str, check: str) -> Outcome:
    (chosen,) = select(CHECKS, [check])
    return bench(backend).run(chosen)


def _expect_found(outcome: Outcome, told: str) -> None:
    assert outcome.verdict is Verdict.FAILED, outcome.message
    assert told in outcome.message


def _no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy is taken, and never gets to the kernel."""

    async def change(guard: Guard, policy: EgressPolicy) -> None:
        guard.policy = policy

    monkeypatch.setattr(Guard, "change", change)


def _first_rules_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sandbox starts with is in force for good."""
    original, seen = Guard.change, set()

    async def change(guard: Guard, policy: EgressPolicy) -> None:
        if guard.interface not in seen:
            seen.add(guard.interface)
            await original(guard, policy)

    monkeypatch.setattr(Guard, "change", change)


def _rules_that_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes of a sandbox later has the network that everybody has."""
    original = branching._pinned

    def pinned(sandbox: Any) -> Any:
        request = original(sandbox)
        return replace(request, network=replace(request.network, policy=EgressPolicy()))

    monkeypatch.setattr(branching, "_pinned", pinned)


def _open_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both walls let private ranges through."""
    for module in (rules, network_policy):
        monkeypatch.setattr(module, "SPECIAL", ("240.0.0.0/4",))


def _unexplained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is some fault or other."""
    monkeypatch.setattr(taking, "explained", lambda error, *_: InfrastructureError(f"it did not work: {error}"))


def _nothing_is_cleared_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trash, "discard", lambda *_: None)


def _any_image_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branching, "_check_base", lambda *_: None)


FAULTS = [
    (_no_rules, "network.rules", "'203.0.113.6'"),
    (_open_walls, "network.default", "'169.254.169.254'"),
    (_first_rules_only, "network.changed", "what it reaches with {'allow_internet_access': False, 'allow': ['203.0.113.6']} is"),
    (_rules_that_are_forgotten, "network.kept", "what it reaches in a fork is ['203.0.113.5', '203.0.113.6']"),
    (_unexplained, "snapshots.full-disk", "InfrastructureError"),
    (_nothing_is_cleared_away, "snapshots.full-disk", "what is left of it is"),
    (_any_image_will_do, "snapshots.other-image", "was not refused"),
]


@needs_namespaces
@needs_root
@pytest.mark.soak
@pytest.mark.parametrize(("fault", "check", "told"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS])
def test_a_fault_of_the_node_is_found(
    bench: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None], check: str, told: str
) -> None:
    fault(monkeypatch)
    _expect_found(_outcome(bench, "namespace", check), told)


@needs_namespaces
async def test_a_connection_that_stays_open_is_noticed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_ENDING", 0.0)
    async with open_subject("namespace") as subject:
        sandbox = await subject.create()
        resident = await start_resident(sandbox)
        connection = await sandbox.dial(resident.port)
        try:
            with pytest.raises(CheckFailed, match="still open in a child"):
                await forks._until_ended(resident, sandbox)
        finally:
            connection.close()


@pytest.mark.soak
def test_a_backend_that_takes_checkpoints_of_any_version_is_found(bench: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    def read_facts(directory: Path, *_: object, **__: object) -> Facts:
        return msgspec.msgpack.decode((directory / FILE).read_bytes(), type=Facts)

    monkeypatch.setattr(gvisor, "read_facts", read_facts)
    _expect_found(_outcome(bench, "gvisor", "machine-memory.version"), "a checkpoint of another format was not refused")


async def _say_nothing(*_: object, **__: object) -> None:
    return None


@pytest.mark.soak
def test_children_whose_agents_are_told_nothing_are_found(bench: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_words, "restored", _say_nothing)
    _expect_found(_outcome(bench, "gvisor", "forks.memory-of-eight"), "do not all differ in")


@needs_root
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_connections_to_the_outside_that_a_child_keeps_are_found(bench: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    debian_or_skip()
    monkeypatch.setenv("AGENTENV_ARTEFACTS", str(shared_cache() / "artefacts"))
    monkeypatch.setattr(agent_words, "restored", _say_nothing)
    _expect_found(_outcome(bench, "qemu", "network.after-memory"), "what becomes of a line in a child")


@needs_root
async def test_work_aside_leaves_this_machine_as_it_is() -> None:
    def network() -> Path:
        return Path("/proc/thread-self/ns/net").readlink()

    async def work() -> None:
        seen.append(network())

    seen = [network()]
    await aside.aside(aside.NETWORK, work)
    before, inside = seen
    assert inside != before
    assert network() == before


@needs_root
async def test_work_aside_that_is_given_up_ends_before_that_is_said() -> None:
    begun, ended = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    async def work() -> None:
        try:
            loop.call_soon_threadsafe(begun.set)
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    task = asyncio.create_task(aside.aside(aside.MOUNTS, work))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


@needs_root
async def test_what_goes_wrong_aside_is_raised_here() -> None:
    async def work() -> None:
        raise CheckFailed("it is so")

    with pytest.raises(CheckFailed, match="it is so"):
        await aside.aside(aside.MOUNTS, work)


async def test_without_the_right_to_it_work_aside_is_not_applicable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise NotApplicable("this user may not have a network or mounts of its own")

    monkeypatch.setattr(aside, "_leave", refused)
    with pytest.raises(NotApplicable, match="may not"):
        await aside.aside(aside.NETWORK, _say_nothing)
