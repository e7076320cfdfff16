"""The virtio-serial ports of one machine, each of which is one connection to the agent at a time.

A port that was left may be used again when the guest has noticed: it closes and opens its end. QEMU tells of each port at most once a
second: of a guest that is quicker one hears that the port is open once more. That it is open for the first time says nothing: a copy's
QEMU begins with it, also of a port over which the guest believes to have a conversation. Ports that the machine does not have yet can be
connected to all the same: QEMU takes the connection, and the agent finds it when the port is plugged in.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentenv.errors import InfrastructureError, InvalidState
from agentenv.isolation.qemu.command import MOST_PORTS
from agentenv.isolation.vm.streams import connect

_BACKLOG = 16
_PATIENCE = 10.0
_KEPT_FREE = 1
"""Ports that no connection uses, so that a copy of the machine has one whose state its guest is right about."""


class Ports:
    """Belongs to the event loop in which it is made; `take` may be called from any thread."""

    def __init__(self, directory: Path, plugged: int, free: Collection[int]) -> None:
        """The machine has the ports 1 to `plugged`; a copy's guest has `free` open and unused, a fresh machine's opens all."""
        self.directory = directory
        self._plug: Callable[[int], Coroutine[Any, Any, None]] | None = None
        self._plugging: set[asyncio.Task[None]] = set()
        self._ready = asyncio.Event()
        self._freed = asyncio.Event()
        self._plugged = plugged
        self._free = set(free)
        self._left = set() if free else set(range(1, plugged + 1))  # by the guest, which will open them again
        self._opened: set[int] = set()  # of which QEMU has told so
        self._changed = threading.Condition()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._closed = False
        if free:
            self._ready.set()

    def serve(self, plug: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        """From now on `plug` gives the machine one more port where one is needed."""
        self._plug = plug

    async def ready(self) -> None:
        """Returns when the guest has opened a port for the first time."""
        await self._ready.wait()

    @property
    def plugged(self) -> int:
        """How many ports the machine has or will have in a moment."""
        return self._plugged

    @property
    def free(self) -> tuple[int, ...]:
        """The ports that the guest has open and nobody uses."""
        with self._changed:
            return tuple(sorted(self._free))

    def changed(self, number: int, is_open: bool) -> None:
        """The guest has opened or closed its end of a port."""
        with self._changed:
            if not is_open:
                self._free.discard(number)
                self._left.add(number)
            elif number in self._left or (number in self._opened and number not in self._free):
                self._left.discard(number)
                self._free.add(number)
                self._changed.notify_all()
                self._freed.set()
                self._ready.set()
            if is_open:
                self._opened.add(number)

    async def settle(self) -> None:
        """Returns when no port is being plugged in and one is free, as a copy of the machine needs it; or when that takes too long.

        A guest that still runs needs a moment to notice that a port was left.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while not self.free and self._may_free():
                    self._freed.clear()
                    await self._freed.wait()
                while self._plugging:
                    await asyncio.wait(self._plugging)

    def take(self, *, last: bool = False) -> socket.socket:
        """A connection to the agent. With `last` it may be over the last free port.

        Raises `InvalidState` when all ports are in use: at once in the event loop's own thread, elsewhere after some seconds. Raises
        OSError when the machine has ended.
        """
        with self._changed:
            number = self._choose(last)
            if number is None and threading.get_ident() != self._thread:
                self._changed.wait_for(lambda: self._closed or bool(self._free), _PATIENCE)
                number = self._choose(last=True)
            if number is None:
                raise InvalidState(
                    f"all {MOST_PORTS} connections of this machine are in use.", remedy="Close some: each forwarded port takes one."
                )
        connection = connect(port_path(self.directory, number), _PATIENCE)
        connection.settimeout(None)
        return connection

    def close(self) -> None:
        """Wakes those who wait, and removes the sockets; idempotent."""
        with self._changed:
            self._closed = True
            self._free.clear()
            self._changed.notify_all()
        self._freed.set()
        for number in range(1, MOST_PORTS + 1):
            port_path(self.directory, number).unlink(missing_ok=True)

    def _may_free(self) -> bool:
        """Whether a port will become free by itself; where none would, one more is plugged in that nobody uses."""
        with self._changed:
            if not self._left and self._plug is not None and self._plugged < MOST_PORTS and not self._closed:
                self._plugged += 1
                self._left.add(self._plugged)
                self._begin_to_plug(self._plug, self._plugged)
            return bool(self._left) and not self._closed

    def _choose(self, last: bool) -> int | None:
        if len(self._free) > (0 if last else _KEPT_FREE):
            return self._free.pop()
        if self._plug is not None and self._plugged < MOST_PORTS and not self._closed:
            self._plugged += 1
            self._loop.call_soon_threadsafe(self._begin_to_plug, self._plug, self._plugged)
            return self._plugged
        return self._free.pop() if self._free else None

    def _begin_to_plug(self, plug: Callable[[int], Coroutine[Any, Any, None]], number: int) -> None:
        task = asyncio.ensure_future(_plugged(plug(number)))
        self._plugging.add(task)
        task.add_done_callback(self._plugging.discard)


async def _plugged(work: Coroutine[Any, Any, None]) -> None:
    # It fails only where QEMU has ended, which whoever is connected finds out.
    with suppress(InfrastructureError):
        await work


def port_path(directory: Path, number: int) -> Path:
    """Where the port's socket is."""
    return directory / f"port{number}"


def listen(directory: Path) -> list[socket.socket]:
    """Listening sockets for all ports that a machine may have, in the order of their numbers. Raises OSError."""
    listeners: list[socket.socket] = []
    # Through a descriptor of the directory: a socket's address has room for 107 bytes.
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number in range(1, MOST_PORTS + 1):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listeners.append(listener)
            os.fchmod(listener.fileno(), 0o600)  # before bind: the file is born with this mode
            listener.bind(f"/proc/self/fd/{place}/{port_path(directory, number).name}")
            listener.listen(_BACKLOG)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    finally:
        os.close(place)
    return listeners
