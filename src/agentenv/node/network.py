"""The warm pool of networks: a slot is ready before a sandbox asks for one, and is thrown away after use, never handed on."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from agentenv.egress.guard import Guard
from agentenv.egress.policy import EgressPolicy
from agentenv.errors import CapabilityError, InfrastructureError, InvalidState
from agentenv.monitoring import EventSink, NullSink
from agentenv.node import network_slots
from agentenv.node.commands import CommandFailed
from agentenv.node.network_host import Membership, NetworkHost, NetworkProbe, probe
from agentenv.node.network_policy import SLOTS_PER_RANGE
from agentenv.node.network_slots import NetworkSlot

if TYPE_CHECKING:
    from agentenv.egress.resolver import Resolver

__all__ = ["NetworkPool", "NetworkProbe", "NetworkSlot"]

FIRST_RETRY = 0.5
LONGEST_RETRY = 60.0
_ATTEMPTS = 256
"""How many indices in a row may be taken by others before a slot is given up."""


class NetworkPool:
    """One owner's networks. It touches the host only when the first slot is wanted (`start` or `acquire`).

    `size` slots are kept ready; a slot in use does not count. Made slots are numbered in a circle from a random start,
    so that an address comes back as late as it can: what still travels to the last sandbox there finds nobody.
    """

    def __init__(self, home: Path, owner: str, *, size: int = 2, events: EventSink | None = None, host: NetworkHost | None = None) -> None:
        self._home = home
        self._owner = owner
        self._size = size
        self._events = events or NullSink()
        self._host = host or NetworkHost()
        self._membership: Membership | None = None
        self._starting = asyncio.Lock()
        self._next_index = secrets.randbelow(SLOTS_PER_RANGE)
        self._ready: deque[NetworkSlot] = deque()
        self._used: dict[int, NetworkSlot] = {}
        self._guards: dict[int, Guard] = {}
        self._wanted = asyncio.Event()
        self._full = asyncio.Event()
        self._filler: asyncio.Task[None] | None = None
        self._closed = False

    @staticmethod
    def probe() -> NetworkProbe:
        """Whether `network.enabled` can be had here; changes nothing and blocks for some milliseconds."""
        return probe()

    @staticmethod
    async def reconcile(home: Path, dead_owners: Collection[str] = (), *, host: NetworkHost | None = None) -> None:
        """Removes the namespaces, links and rules of dead owners: those named, and any of this machine whose lock is free."""
        await (host or NetworkHost()).reconcile(dead_owners)

    async def start(self) -> None:
        """Joins the machine's network and begins to fill the pool; does nothing the second time.

        Raises `CapabilityError` where sandboxes cannot have a network, `InfrastructureError` when setting it up failed.
        """
        async with self._starting:
            if self._closed:
                raise InvalidState("the network pool is closed.")
            if self._membership is not None:
                return
            found = await asyncio.to_thread(probe)
            if not found.usable:
                raise CapabilityError(f"a sandbox cannot have a network here: {found.reason}", remedy=found.remedy)
            for note in found.notes:
                self._events.emit("network.note", text=note)
            self._membership = await self._host.join(self._owner, self._home)
            self._wanted.set()
            self._filler = asyncio.create_task(self._fill(), name="network pool")

    async def warm(self) -> None:
        """Starts, and returns when `size` slots are ready and the rules are in force. Raises as `start`."""
        await self.start()
        await self._full.wait()

    async def acquire(self) -> NetworkSlot:
        """A slot that nobody has used: a ready one at once, otherwise one made now. Raises as `start`."""
        await self.start()
        slot = None
        while self._ready and slot is None:
            candidate = self._ready.popleft()
            slot = candidate if candidate.netns.exists() else None
        self._full.clear()
        self._wanted.set()
        if slot is None:
            slot = await self._make()
        self._used[slot.index] = slot
        return slot

    async def attach(self, pid: int, namespace: int) -> NetworkSlot:
        """A slot around the network namespace of a process that runs already; nothing passes before `connect`.

        `namespace` is a descriptor of it, which tells whether `pid` is still that process. Raises as `start`, and `InvalidState` for a
        process that has ended.
        """
        await self.start()
        slot = await self._make(pid)
        self._used[slot.index] = slot
        found, meant = slot.netns.stat(), os.fstat(namespace)
        if (found.st_dev, found.st_ino) != (meant.st_dev, meant.st_ino):
            await self.release(slot)
            raise InvalidState(f"process {pid} has ended.")
        return slot

    async def connect(self, slot: NetworkSlot) -> None:
        """Lets packets pass through a slot of `attach`, whose rules are in force. Raises `InfrastructureError`."""
        await network_slots.connect(slot)

    async def guard(self, slot: NetworkSlot, sandbox: str, policy: EgressPolicy) -> Guard:
        """Puts `policy` in force for a slot in use, before the sandbox of that id starts in it; `release` ends it.

        Raises `InfrastructureError` or `OSError` where that cannot be; the slot is to be released then, too.
        """
        guard = self._guards[slot.index] = Guard(sandbox, slot, lambda: self._resolver, self._events, self._enforce)
        await guard.change(policy)
        return guard

    async def _enforce(self) -> None:
        await self._host.enforce({guard.interface: text for guard in self._guards.values() if (text := guard.host_rules())})

    @cached_property
    def _resolver(self) -> Resolver:
        # Loaded here: it brings the DNS library, which sandboxes without rules about names do without.
        from agentenv.egress.resolver import Resolver

        return Resolver()

    async def release(self, slot: NetworkSlot) -> None:
        """Removes the slot; what still runs in it is cut off. Idempotent."""
        if self._used.get(slot.index) == slot:
            guard = self._guards.pop(slot.index, None)
            if guard is not None:
                await guard.close()
            await network_slots.destroy([slot])
            del self._used[slot.index]

    async def close(self) -> None:
        """Removes every slot and leaves the machine's network; idempotent."""
        async with self._starting:
            self._closed = True
            membership, self._membership = self._membership, None
        if membership is None:
            return
        if self._filler is not None:
            self._filler.cancel()
            await asyncio.wait([self._filler])
        await asyncio.gather(*(guard.close() for guard in self._guards.values()))
        self._guards.clear()
        await network_slots.destroy([*self._ready, *self._used.values()])
        self._ready.clear()
        self._used.clear()
        await self._host.leave(membership)

    async def _make(self, inhabitant: int | None = None) -> NetworkSlot:
        membership = self._membership
        if membership is None:
            raise InvalidState("the network pool is closed.")
        for _ in range(_ATTEMPTS):
            index, self._next_index = self._next_index, (self._next_index + 1) % SLOTS_PER_RANGE
            if index in self._used or any(slot.index == index for slot in self._ready):
                continue  # once round: a slot that is made under the name of one in use would be unmade with that one
            try:
                return await network_slots.create(
                    self._owner, index, membership.slot_range, membership.nameservers, membership.mtu, inhabitant
                )
            except CommandFailed as error:
                if "File exists" not in error.complaint:
                    raise
        raise InfrastructureError(
            f"no free network slot among {_ATTEMPTS} numbers in a row.", remedy="End sandboxes that are no longer needed (`agentenv ls`)."
        )

    async def _fill(self) -> None:
        """Keeps `size` slots ready. A failure is told, and tried again after a pause that doubles up to a minute."""
        pause = FIRST_RETRY
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._enforce()
                while len(self._ready) < self._size:
                    self._ready.append(await self._make())
                pause = FIRST_RETRY
                self._full.set()
            except InfrastructureError as error:
                self._events.emit("network.refill_failed", error=str(error), retry_seconds=pause)
                await asyncio.sleep(pause)
                pause = min(LONGEST_RETRY, pause * 2)
                self._wanted.set()
