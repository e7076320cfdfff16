"""What one process has when nobody says otherwise: a node for each event loop, and one loop in the background for synchronous code.

All of it is made on first use and ends with its loop or with the process. A forked child has a runtime of its own and leaves its
parent's alone.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from functools import cache

from agentenv.node import Node
from agentenv.paths import HERE, SERVER_VARIABLE
from agentenv.sandbox.loop_thread import LoopThread
from agentenv.sandbox.owners import Owner, open_remote
from agentenv.sandbox.remote.address import ServerAddress


class Runtime:
    """The defaults of one process."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._making = threading.Lock()
        self._background: LoopThread | None = None
        self._nodes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ServerAddress | None, _LoopNode]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def background(self) -> LoopThread:
        """The loop in which the synchronous sandboxes live."""
        with self._making:
            if self._background is None:
                self._background = LoopThread()
                _at_exit(self.close)
            return self._background

    async def node(self, server: ServerAddress | None = None) -> Owner:
        """The node of the running loop: this machine's, or that of a server."""
        nodes = self._nodes.setdefault(asyncio.get_running_loop(), {})
        if server not in nodes:
            nodes[server] = _LoopNode(server)
        return await nodes[server].get()

    def forget(self) -> None:
        """In a forked child: lets go of what belongs to the parent."""
        for nodes in self._nodes.values():
            for holder in nodes.values():
                holder.forget()

    def close(self) -> None:
        """Ends the loop in the background, with its node and sandboxes. Idempotent; nothing happens in a forked child."""
        with self._making:
            background, self._background = self._background, None
        if background is not None and os.getpid() == self._process:
            background.close()


class _LoopNode:
    """A node that is opened once and closed with its loop.

    It is held by an asynchronous generator, because those are what a loop closes at its end (`loop.shutdown_asyncgens`, which
    `asyncio.run` calls).
    """

    def __init__(self, server: ServerAddress | None) -> None:
        self._server = server
        self._opening = asyncio.Lock()
        self._holder: AsyncGenerator[Owner, None] | None = None
        self._node: Owner | None = None

    async def get(self) -> Owner:
        """Opens the node on the first call."""
        if self._node is None:
            async with self._opening:
                if self._node is None:
                    holder = _open_until_closed(self._server)
                    self._node = await anext(holder)
                    self._holder = holder
        return self._node

    def forget(self) -> None:
        """In a forked child: lets go of the parent's node without touching it, nor the parent's loop at the generator's end."""
        if self._holder is not None:
            with contextlib.suppress(StopIteration, StopAsyncIteration, RuntimeError):
                self._holder.aclose().__await__().__next__()


_LoopNodes = dict[ServerAddress | None, _LoopNode]


async def _open_until_closed(server: ServerAddress | None) -> AsyncGenerator[Owner, None]:
    process = os.getpid()
    node = await Node.open() if server is None else open_remote(server)
    try:
        yield node
    finally:
        if os.getpid() == process:
            await node.close()


def _at_exit(function: Callable[[], None]) -> None:
    """Calls `function` when the interpreter ends, before it stops its thread pools, which a node needs to close.

    `threading` has this hook for `concurrent.futures` under a private name; where it is missing, `atexit` runs later, when
    directories of the node can no longer be removed in threads: the next start of a node then does it.
    """
    register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
    register(function)


@cache
def runtime() -> Runtime:
    """This process's runtime."""
    return Runtime()


def _after_fork() -> None:
    if runtime.cache_info().currsize:
        runtime().forget()
        runtime.cache_clear()


os.register_at_fork(after_in_child=_after_fork)


async def default_node(server: str | None = None, api_key: str | None = None) -> Owner:
    """The node of this process for the running event loop, opened on first use; or that of a server, by default AGENTENV_SERVER's.

    `server` may be `HERE` ("local"), which is this machine whatever the variable says.

    Raises `ConfigError` for an address that is none, `Unauthenticated` without a key.
    """
    remote = server or os.environ.get(SERVER_VARIABLE)
    return await runtime().node(ServerAddress.find(remote, api_key) if remote and remote != HERE else None)
