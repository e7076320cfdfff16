"""One sandbox as the fleet keeps it in memory: its state, its machine, its deadline, and who uses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentenv.sandbox import AsyncSandbox
from agentenv.server.fleet.records import Facts, PauseMode, SandboxView, State


@dataclass(slots=True, eq=False)
class Resident:
    """A sandbox that is not ended. `lock` is held by whatever changes `state`; reading needs no lock.

    `deadline`, `used` and `since` are of the monotonic clock, so that setting the clock ends no sandbox; `started` and `paused` are unix
    seconds, for showing only. `snapshot` is the node's snapshot that a paused sandbox can be started from without its machine.
    """

    id: str
    tenant: str
    facts: Facts
    domain: str
    state: State = State.CREATING
    handle: AsyncSandbox | None = None
    snapshot: str | None = None
    pause_mode: PauseMode | None = None
    memory_kept: bool = False
    """Whether `snapshot` holds its memory too."""
    by_wish_without_memory: bool = False
    """Whether its last pause was asked to drop the memory: then no traffic may wake it, since it would not go on where it was."""
    started: float = field(default_factory=time.time)
    paused: float | None = None
    deadline: float | None = None
    timer: asyncio.TimerHandle | None = None
    used: float = field(default_factory=time.monotonic)
    users: int = 0
    doom: str | None = None
    """Why it is about to end, once that is decided."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    watch: asyncio.Task[None] | None = None
    """What notices the end of the machine `watched`."""
    watched: AsyncSandbox | None = None

    def view(self) -> SandboxView:
        """As it is now, for others."""
        facts = self.facts
        return SandboxView(
            id=self.id,
            tenant=self.tenant,
            state=self.state,
            template=facts.template,
            build=facts.build,
            alias=facts.alias,
            envd_access_token=facts.envd_token,
            traffic_access_token=facts.traffic_token,
            domain=self.domain,
            started=self.started,
            end=None if self.deadline is None else time.time() + self.deadline - time.monotonic(),
            timeout=facts.timeout,
            lifecycle=facts.lifecycle,
            network=facts.network,
            resources=facts.resources,
            metadata=facts.metadata,
            env=facts.env,
            user=facts.user,
            cwd=facts.cwd,
            parent=facts.parent,
            pause_mode=self.pause_mode if self.state is State.PAUSED else None,
            machine=self.handle.id if self.handle else None,
        )

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within the block it is not idle."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self.used = time.monotonic()

    def idle_for(self) -> float:
        """Seconds since somebody last used it; 0 while somebody does."""
        return 0.0 if self.users else time.monotonic() - self.used
