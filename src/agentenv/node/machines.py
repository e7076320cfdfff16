"""What a machine may have beyond what the contract asks of every one, and how the node asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from agentenv.isolation.contract import Machine
from agentenv.isolation.namespace.makers import start_ticks


@runtime_checkable
class HasProcess(Protocol):
    """A machine whose processes are those of this machine, under its numbers; `pid` is the first."""

    @property
    def pid(self) -> int: ...

    def processes(self) -> Iterable[int]: ...


@runtime_checkable
class SometimesCheckpointing(Protocol):
    """A machine that cannot always be written down though its backend can; `checkpoint_obstacle` says why not now, in a sentence."""

    @property
    def checkpoint_obstacle(self) -> str | None: ...


def first_process(machine: Machine) -> tuple[int, int] | None:
    """Its number with its start time, which make sure that another process kills this one and no later one."""
    pid: int | None = getattr(machine, "pid", None)  # asked of each start: `isinstance` of a protocol takes ten times as long
    ticks = None if pid is None else start_ticks(pid)
    return None if pid is None or ticks is None else (pid, ticks)
