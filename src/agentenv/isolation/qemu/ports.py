"""The virtio-serial ports of one machine, each of which is one connection to the agent at a time.

A port that was left may be used again when the guest has noticed: it closes and opens its end. QEMU tells of each port at most once a
second: of a guest that is quicker one hears that the port is open once more. That it is open for the first time says nothing: a copy's
QEMU begins with it, also of a port over which the guest believes to have a conversation. A port that the machine does not have yet can be
connected to as soon as it has a listening socket: QEMU takes the connection, and the agent finds it when the port is plugged in.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentenv.errors import InfrastructureError, InvalidState
from agentenv.isolation.qemu.command import MOST_PORTS
from agentenv.isolation.vm.streams import connect

Plug = Callable[[int, socket.socket], Coroutine[Any, Any, None]]
"""Gives the machine a port of that number, whose connections come to the listening socket."""

_BACKLOG = 16
_PATIENCE = 10.0
_KEPT_FREE = 1
"""Ports that no connection uses, so that a copy of the machine has one whose state its guest is right about."""


class Ports:
    """Belongs to the event loop in which it is made; `take` may be called from any thread."""

    def __init__(self, directory: Path, plugged: int, free: Collection[int]) -> None:
        """The machine has the ports 1 to `plugged`; a copy's guest has `free` open and unused, a fresh machine's opens all."""
        self.directory = directory
        self._plug: Plug | None = None
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
        self._ahead: socket.socket | None = None

    def serve(self, plug: Plug) -> None:
        """From now on `plug` gives the machine one more port where one is needed."""
        self._plug = plug

    def connect_ahead(self) -> None:
        """Connects to a copy before its QEMU listens to anybody: its guest hears of it in its first moment. Raises OSError."""
        self._ahead = self.take(last=True)

    async def first(self) -> socket.socket:
        """The first connection to the agent, of a fresh machine when its guest has opened a port. Raises OSError."""
        if self._ahead is None:
            await self._ready.wait()
            return self.take(last=True)
        connection, self._ahead = self._ahead, None
        return connection

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
        if self._ahead is not None:
            self._ahead.close()
        for number in range(1, self._plugged + 1):
            port_path(self.directory, number).unlink(missing_ok=True)

    def _may_free(self) -> bool:
        """Whether a port will become free by itself; where none would, one more is plugged in that nobody uses."""
        with self._changed:
            if not self._left:
                self._plug_ahead()
            return bool(self._left) and not self._closed

    def _choose(self, last: bool) -> int | None:
        if len(self._free) > (0 if last else _KEPT_FREE):
            chosen = self._free.pop()
            if len(self._free) <= _KEPT_FREE:
                self._plug_ahead()
            return chosen
        number = self._plug_another()
        return self._free.pop() if number is None and self._free else number

    def _plug_ahead(self) -> None:
        """One more port that nobody uses, for whoever comes next: an emulated guest takes 50 ms until it has opened a new one."""
        with suppress(OSError):  # where there are no more sockets, whoever needs one is told
            if (number := self._plug_another()) is not None:
                self._left.add(number)

    def _plug_another(self) -> int | None:
        """The number of the port, which can be connected to at once; None where there can be no more. Raises OSError."""
        if self._plug is None or self._plugged >= MOST_PORTS or self._closed:
            return None
        number = self._plugged + 1
        (listener,) = listen(self.directory, [number])
        self._plugged = number
        self._loop.call_soon_threadsafe(self._begin_to_plug, self._plug, number, listener)
        return number

    def _begin_to_plug(self, plug: Plug, number: int, listener: socket.socket) -> None:
        task = asyncio.ensure_future(_plugged(plug, number, listener))
        self._plugging.add(task)
        task.add_done_callback(self._plugging.discard)


async def _plugged(plug: Plug, number: int, listener: socket.socket) -> None:
    # It fails only where QEMU has ended, which whoever is connected finds out.
    with listener, suppress(InfrastructureError):
        await plug(number, listener)


def port_path(directory: Path, number: int) -> Path:
    """Where the port's socket is."""
    return directory / f"port{number}"


def listen(directory: Path, numbers: Iterable[int]) -> list[socket.socket]:
    """Listening sockets for the ports of those numbers, in their order. Raises OSError."""
    listeners: list[socket.socket] = []
    # Through a descriptor of the directory: a socket's address has room for 107 bytes.
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number in numbers:
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
