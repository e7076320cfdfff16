"""What a sandbox needs of its node. `Box` is the sandbox itself, which this module need not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from agentenv.egress.policy import EgressPolicy
from agentenv.errors import AgentEnvError
from agentenv.monitoring import EventSink
from agentenv.node.capacity import Capacity
from agentenv.node.journal import Journal
from agentenv.node.snapshots import Snapshot
from agentenv.node.starter import Running
from agentenv.node.storage import StorageWatch

Box = TypeVar("Box")
Given = TypeVar("Given", contravariant=True)


class Branches(Protocol[Box]):
    """What `NodeSandbox.snapshot`, `rollback`, `fork` and `set_network` do, for all sandboxes of a node."""

    async def snapshot(self, sandbox: Box, name: str | None, memory: bool | None) -> Snapshot: ...

    async def rollback(self, sandbox: Box, name_or_id: str, memory: bool | None) -> None: ...

    async def fork(self, sandbox: Box, count: int, memory: bool | None) -> list[Box | AgentEnvError]: ...

    async def connect(self, running: Running, hostname: str, policy: EgressPolicy) -> Running: ...


class Hibernates(Protocol[Given]):
    """What `NodeSandbox.pause(to_disk=True)` and `resume` do, for all sandboxes of a node. The caller holds `transition`."""

    async def hibernate(self, sandbox: Given) -> None: ...

    async def wake(self, sandbox: Given) -> None: ...

    def holds(self, identifier: str) -> bool: ...

    def forget(self, identifier: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings(Generic[Box]):
    """What a sandbox needs of its node; `on_end` is called once, when it is gone."""

    journal: Journal
    events: EventSink
    capacity: Capacity
    branching: Branches[Box]
    hibernating: Hibernates[Box]
    storage: StorageWatch
    on_end: Callable[[str], None]
