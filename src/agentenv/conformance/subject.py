"""What the checks are run on: a node with one backend, sandboxes for the asking, and everything ended after each check."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentenv.errors import AgentEnvError, InvalidState, NotFound
from agentenv.images import default_image
from agentenv.isolation.conformance import NotApplicable, Yard, open_yard
from agentenv.isolation.contract import Capabilities, Timeouts
from agentenv.node import Node
from agentenv.node.snapshots import Snapshot
from agentenv.sandbox import AsyncSandbox

PATIENT = Timeouts(startup=120.0, shutdown=20.0)
CYCLES = 10


class Subject:
    """A backend as its users meet it. `yard` has the same backend without a node, for the checks of the machine level.

    `cycles` and `seed` say how many random changes of state are tried in a row, and which.
    """

    def __init__(self, yard: Yard, node: Node, image: str, *, cycles: int = CYCLES, seed: int = 0) -> None:
        self.yard = yard
        self.node = node
        self.image = image
        self.isolation = yard.backend.name
        self.cycles = cycles
        self.seed = seed
        self._shared: AsyncSandbox | None = None
        self._own: list[AsyncSandbox] = []
        self._snapshots: list[Snapshot] = []

    @property
    def capabilities(self) -> Capabilities:
        """What the backend claims."""
        return self.yard.capabilities

    async def sandbox(self) -> AsyncSandbox:
        """A running sandbox that the checks share: what runs in it is ended after each check, its files stay."""
        if self._shared is None or not await self._shared.is_running():
            self._shared = await self._start({})
        return self._shared

    def has_shared(self) -> bool:
        """Whether that one is there and runs."""
        return self._shared is not None and self._shared.state != "dead"

    async def create(self, **wishes: Any) -> AsyncSandbox:
        """A sandbox for this check alone, by the arguments of `AsyncSandbox.create`."""
        return self.keep(await self._start(wishes))

    def keep(self, sandbox: AsyncSandbox) -> AsyncSandbox:
        """Has the sandbox ended after the check."""
        self._own.append(sandbox)
        return sandbox

    async def fork(self, sandbox: AsyncSandbox, count: int, *, memory: bool | None = None) -> list[AsyncSandbox]:
        """Children, which are ended after the check. Raises the error of the first that did not start."""
        children = await sandbox.fork(count, **_given(memory))
        alive = [self.keep(child) for child in children if not isinstance(child, AgentEnvError)]
        for child in children:
            if isinstance(child, AgentEnvError):
                raise child
        return alive

    async def snapshot(self, sandbox: AsyncSandbox, *, memory: bool | None = None) -> Snapshot:
        """A snapshot, which is deleted after the check."""
        taken = await sandbox.snapshot(f"conformance-{secrets.token_hex(6)}", **_given(memory))
        self._snapshots.append(taken)
        return taken

    async def require(self, sandbox: AsyncSandbox, *programs: str) -> None:
        """Raises `NotApplicable` unless the image has these programs."""
        for program in programs:
            if (await sandbox.commands.run(f"command -v {program} >/dev/null 2>&1; echo $?")).stdout.strip() != "0":
                raise NotApplicable(f"the image {self.image} has no {program}.")

    async def tidy(self) -> None:
        """Ends what the check has made."""
        own, self._own = self._own, []
        await asyncio.gather(*(sandbox.kill() for sandbox in own))
        while self._snapshots:
            await self._delete(self._snapshots.pop())
        if self._shared is not None and await self._shared.is_running():
            for process in await self._shared.commands.list():
                await self._shared.commands.kill(process.pid)
        await self.yard.tidy()

    async def close(self) -> None:
        """Ends everything."""
        await self.tidy()
        if self._shared is not None:
            await self._shared.kill()

    async def _start(self, wishes: dict[str, Any]) -> AsyncSandbox:
        chosen = {"image": self.image, "isolation": self.isolation, "timeouts": PATIENT, **wishes}
        return await AsyncSandbox.create(node=self.node, **chosen)

    async def _delete(self, snapshot: Snapshot) -> None:
        try:
            await self.node.delete_snapshot(snapshot.id)
        except (NotFound, InvalidState):
            return  # the check has deleted it itself, or one that failed has left children; those of the other kind are next


def _given(memory: bool | None) -> dict[str, bool]:
    return {} if memory is None else {"memory": memory}


@asynccontextmanager
async def open_subject(
    name: str, image: str | None = None, *, home: Path | None = None, cycles: int = CYCLES, seed: int = 0
) -> AsyncIterator[Subject]:
    """The backend `name` with a node in `home` (by default this user's AGENTENV_HOME), whose images it has.

    Without `image`: `debian` where a sandbox's disk is an image, `host` elsewhere. Raises `BackendUnavailable`, `NotFound`.
    """
    async with open_yard(name) as yard, await Node.open(home) as node:
        subject = Subject(yard, node, image or default_image(disk=yard.capabilities.disk_image), cycles=cycles, seed=seed)
        try:
            yield subject
        finally:
            await subject.close()
