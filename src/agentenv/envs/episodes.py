"""Keeping, restoring and forking a running episode together with its sandbox.

Where the sandbox can be written down with its memory, the environment's process itself is kept, and goes on. Elsewhere the environment
saves its episode into a file of its sandbox first (`STATE_FILE`), so that a snapshot of the files holds both, and the server that is
started from it loads that file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from agentenv.envs.handle import SandboxHandle
from agentenv.envs.lane import Lane
from agentenv.envs.lanes import close_all, in_parallel
from agentenv.envs.opening import Plan
from agentenv.envs.process import STATE_FILE
from agentenv.errors import AgentEnvError, InfrastructureError, InvalidState


class KeptSnapshot(Protocol):
    """A snapshot, of which only the id is needed here."""

    @property
    def id(self) -> str: ...


class Branching(Protocol):
    """A sandbox that can be snapshotted, rolled back and forked, as `agentenv.Sandbox` can."""

    def snapshot(self, name: str | None = None) -> KeptSnapshot: ...

    def rollback(self, snapshot: str) -> Any: ...

    def fork(self, count: int) -> Sequence[SandboxHandle | AgentEnvError]: ...


def snapshot(lane: Lane, name: str | None) -> str:
    """Keeps sandbox and episode; returns the snapshot's id.

    Raises `CapabilityError` where neither the sandbox's memory nor the environment can be saved.
    """
    _store_episode(lane)
    return _branching(lane).snapshot(name).id


def restore(lane: Lane, plan: Plan, kept: str) -> Lane:
    """A lane in which the kept episode goes on: the same sandbox rolled back, or a new one where that is dead.

    The old lane is of no more use, whether this works or not.
    """
    lane.stream.close()
    try:
        _branching(lane).rollback(kept)
        sandbox = lane.sandbox
    except (InfrastructureError, InvalidState):
        lane.sandbox.kill()
        sandbox = plan.sandbox(kept)
    return Lane.adopt(sandbox, plan.spec, plan.timeouts, resume=True)


def fork(lane: Lane, plan: Plan, count: int) -> list[Lane]:
    """`count` lanes in which the episode goes on, each in a fork of the sandbox.

    When one cannot be made none is left, and its error is raised.
    """
    if count < 1:
        raise AgentEnvError(f"fork was asked for {count} environments; it must be at least 1.")
    _store_episode(lane)
    children = _branching(lane).fork(count)
    results = in_parallel(lambda child: _adopt(child, plan), children)
    lanes = [result for result in results if isinstance(result, Lane)]
    for result in results:
        if isinstance(result, AgentEnvError):
            close_all(lanes, gracefully=False)
            raise result
    return lanes


def _adopt(child: SandboxHandle | AgentEnvError, plan: Plan) -> Lane | AgentEnvError:
    if isinstance(child, AgentEnvError):
        return child
    try:
        return Lane.adopt(child, plan.spec, plan.timeouts, resume=True)
    except AgentEnvError as problem:
        return problem


def _store_episode(lane: Lane) -> None:
    if lane.broken is not None:
        raise lane.broken
    if not lane.sandbox.capabilities.memory_snapshot:
        lane.sandbox.files.write(STATE_FILE, lane.save())


def _branching(lane: Lane) -> Branching:
    return cast("Branching", lane.sandbox)
