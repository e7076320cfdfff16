"""How sandboxes ended, for clients that ask after it has happened: their connection breaks first, and then they want to know why."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from agentenv.errors import NotFound
from agentenv.node import NodeSandbox
from agentenv.node.control import describe
from agentenv.sandbox.remote.wire import Ended
from agentenv.server.fleet import Fleet

REMEMBERED = 4096
"""Ends of sandboxes that are kept, the latest."""


class Ends:
    """Watches the machines of sandboxes that were made or found through the node's API."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._watches: dict[str, tuple[NodeSandbox, asyncio.Task[None]]] = {}
        self._known: OrderedDict[str, tuple[str, Ended]] = OrderedDict()

    def watch(self, tenant: str, sandbox: str) -> None:
        """Remembers how the present machine of a sandbox will have ended."""
        machine = self._fleet.machine(sandbox)
        watched = self._watches.get(sandbox)
        if machine is None or (watched is not None and watched[0] is machine):
            return
        task = asyncio.create_task(self._wait(tenant, sandbox, machine))
        self._watches[sandbox] = (machine, task)

    def known(self, tenant: str, sandbox: str) -> Ended | None:
        """How it ended, None while it has not. Raises `NotFound` for one that is not known, or of another tenant."""
        whose, ended = self._known.get(sandbox, (tenant, None))
        if whose != tenant or (ended is None and sandbox not in self._watches):
            raise NotFound(f"there is no sandbox {sandbox!r}.")
        return ended

    async def wait(self, tenant: str, sandbox: str, seconds: float) -> Ended | None:
        """The same, after at most that time in which it may end."""
        if self.known(tenant, sandbox) is None:
            await asyncio.wait({self._watches[sandbox][1]}, timeout=seconds)
        return self.known(tenant, sandbox)

    async def _wait(self, tenant: str, sandbox: str, machine: NodeSandbox) -> None:
        ended = await machine.wait()
        self._watches.pop(sandbox, None)
        # A pause may end a machine and keep the sandbox, which gets another one when it is resumed.
        if not self._fleet.known(sandbox) or self._fleet.machine(sandbox) is machine:
            self._known[sandbox] = (tenant, Ended(ended, describe(machine.failure) if machine.failure else None))
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
