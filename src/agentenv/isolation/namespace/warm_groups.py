"""A few cgroups made in advance: making one takes up to a millisecond, which a start need not wait for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets

from agentenv.errors import InfrastructureError
from agentenv.isolation.namespace.cgroups import Cgroup, CgroupTree, group_name

_READY = 4
_IDLE_SECONDS = 0.02


class WarmGroups:
    """The cgroups of one owner's sandboxes. None is used twice: what the kernel has counted in one stays with it.

    They are numbered, since they exist before the machine that they could be named after. Belongs to the event loop that it is made in.
    """

    def __init__(self, tree: CgroupTree, owner: str) -> None:
        self._tree = tree
        self._owner = owner
        self._series = secrets.token_hex(3)  # an owner may have two backends open for a moment
        self._numbers = itertools.count(1)
        self._ready: list[Cgroup] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()

    @property
    def ready(self) -> tuple[str, ...]:
        """The names of those that wait for a sandbox."""
        return tuple(group.name for group in self._ready)

    def take(self) -> Cgroup:
        """One for a new sandbox, which is the caller's to remove. Raises `InfrastructureError` when the kernel refuses to make one."""
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(_IDLE_SECONDS, self._refill)
        return self._ready.pop() if self._ready else self._make()

    def add_one(self) -> None:
        """Makes one for later, unless there are enough: to be called when nobody waits. A refusal is left to the next `take` to tell."""
        if len(self._ready) < _READY and not self._closed:
            with contextlib.suppress(InfrastructureError):
                self._ready.append(self._make())

    def close(self) -> None:
        """Removes those that were not used. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        while self._ready:
            self._ready.pop().remove()

    def _make(self) -> Cgroup:
        return self._tree.create(group_name(self._owner, f"{self._series}x{next(self._numbers)}"))

    def _refill(self) -> None:
        """One at a time, so that the loop is never held for long."""
        self._timer = None
        self.add_one()
        if len(self._ready) < _READY and not self._closed:
            self._timer = self._loop.call_later(_IDLE_SECONDS, self._refill)
