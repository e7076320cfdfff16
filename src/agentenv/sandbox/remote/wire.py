"""What the node's API of a server says, as plain data (docs/node-api.md). The server's routes and the remote node share it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import msgspec

from agentenv.errors import Stage
from agentenv.isolation.contract import Capabilities, Exit, Resources
from agentenv.node.control import Fault
from agentenv.sandbox.results import SandboxInfo

PREFIX = "/node/v1"
UPGRADE = "agentenv-agent"
"""The protocol that a tunnel's request asks to switch to: from the answer on, the agent's own frames."""


class RemoteSandbox(msgspec.Struct, frozen=True):
    """A live sandbox of a server. Times are unix seconds, `timings` the stages of its start."""

    id: str
    generation: int
    state: str
    image: str
    backend: str
    created: float
    expires: float | None = None
    snapshot: str | None = None
    resources: Resources = msgspec.field(default_factory=Resources)
    metadata: Mapping[str, str] = {}
    timings: tuple[Stage, ...] = ()
    capabilities: Capabilities = Capabilities()
    owner_pid: int = 0

    def info(self) -> SandboxInfo:
        """The same as users see it."""
        return SandboxInfo(
            id=self.id,
            state=self.state,
            image=self.image,
            backend=self.backend,
            generation=self.generation,
            started_at=dt.datetime.fromtimestamp(self.created, dt.UTC),
            end_at=None if self.expires is None else dt.datetime.fromtimestamp(self.expires, dt.UTC),
            owner_pid=self.owner_pid,
            metadata=dict(self.metadata),
        )


class Ended(msgspec.Struct, frozen=True):
    """How a sandbox ended, and the fault that explains it where nobody had asked for it."""

    exit: Exit
    fault: Fault | None = None


class Waited(msgspec.Struct, frozen=True):
    """What a wait for a sandbox's end gave: None when it still lives after as long as the server waits."""

    ended: Ended | None = None


class Lease(msgspec.Struct, frozen=True):
    """What keeps a client's sandboxes alive: it is renewed before `seconds` are over, or they end."""

    id: str
    seconds: float


class LogLine(msgspec.Struct, frozen=True):
    """Something that happened to a sandbox; `timestamp` as in RFC 3339."""

    timestamp: str
    message: str
    level: str
    fields: Mapping[str, str] = {}


class Logs(msgspec.Struct, frozen=True):
    """Lines of the server about one sandbox, the oldest first."""

    logs: list[LogLine]
