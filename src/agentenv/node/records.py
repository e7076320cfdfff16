"""What the node is asked for, and what it tells others about a sandbox: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.egress.policy import EgressPolicy
from agentenv.isolation.contract import Resources, Timeouts


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """Whether a sandbox may reach the outside world, what of it, and which of its ports (1-65535) will be reachable from this machine."""

    enabled: bool = False
    ports: tuple[int, ...] = ()
    policy: EgressPolicy = field(default_factory=EgressPolicy)


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """One wished-for sandbox. With `snapshot` (a name or id) it starts from that one, and `image` is the snapshot's.

    `image` None is the backend's default (`agentenv.images.default_image`); what a sandbox says of itself has the one that it came to.

    `memory` says whether its processes go on: None is "where the snapshot holds them". `lifetime` is in seconds from its start; None is
    without end, that is until its owner ends.
    """

    image: str | None = None
    snapshot: str | None = None
    isolation: str = "auto"
    resources: Resources = field(default_factory=Resources)
    network: NetworkRequest = field(default_factory=NetworkRequest)
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    lifetime: float | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    memory: bool | None = None


@dataclass(frozen=True, slots=True)
class StorageKill:
    """A process that the node ended because it wrote when the sandbox's files took more than `resources.storage` (bytes)."""

    limit: int
    used: int
    process: str


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """A live sandbox as its owner's journal tells it. Times are unix seconds; `directory` holds the agent's socket `agent.sock`."""

    id: str
    owner: str
    owner_pid: int
    generation: int
    state: str
    image: str
    backend: str
    created: float
    expires: float | None
    metadata: Mapping[str, str]
    directory: Path
    snapshot: str | None = None
    init: tuple[int, int] | None = None
    """PID 1 of the sandbox as this machine sees it, with its start time in clock ticks since boot (/proc/PID/stat, field 22)."""
