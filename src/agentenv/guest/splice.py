"""A dialled stream as a plain local socket, for agents whose stream cannot carry descriptors."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

from agentenv.errors import ProtocolError
from agentenv.guest.frames import INITIAL_CREDIT, MAX_DATA, Decoder, Frame, Kind, data_header, encode


def splice(agent: socket.socket, decoder: Decoder, frames: list[Frame], stream: int) -> socket.socket:
    """A blocking socket whose bytes go through `stream` of the agent; `frames` came behind `connected` already."""
    near, far = socket.socketpair()
    far.setblocking(False)
    mover = _Mover(agent, far, decoder, stream)
    mover.take(frames)
    threading.Thread(target=mover.run, name="agentenv-dial", daemon=True).start()
    return near


class _Mover:
    """Moves bytes both ways in a thread of its own until both directions are closed or either end is gone.

    What the local side has not read yet waits in `_unread`, which the stream's flow control bounds; the thread never blocks on that side,
    so that a program that writes before it reads cannot lock up.
    """

    def __init__(self, agent: socket.socket, local: socket.socket, decoder: Decoder, stream: int) -> None:
        self._agent = agent
        self._local = local
        self._decoder = decoder
        self._stream = stream
        self._credit = INITIAL_CREDIT
        self._unread = bytearray()
        self._local_sends = True
        self._agent_sends = True
        self._over = False

    def run(self) -> None:
        """Until it is over."""
        with self._agent, self._local, selectors.DefaultSelector() as selector, contextlib.suppress(OSError, ProtocolError):
            selector.register(self._agent, selectors.EVENT_READ)
            watched = 0
            while not self._over or self._unread:
                events = self._wanted_of_local()
                if events != watched:
                    self._watch_local(selector, watched, events)
                    watched = events
                for key, ready in selector.select():
                    if key.fileobj is self._agent:
                        self._from_agent(selector)
                    else:
                        self._serve_local(ready)

    def take(self, frames: list[Frame]) -> None:
        """Handles frames of the agent."""
        for _, kind, body in frames:
            if kind is Kind.DATA and isinstance(body, bytes | memoryview):
                self._unread += body
                if len(self._unread) > INITIAL_CREDIT:
                    raise ProtocolError("the agent sent more on a dialled stream than it was allowed to.")
            elif kind is Kind.WINDOW and isinstance(body, int):
                self._credit += body
            elif kind is Kind.END:
                self._agent_sends = False
                self._close_direction()
            elif kind in (Kind.RESULT, Kind.ERROR):
                self._over = True

    def _wanted_of_local(self) -> int:
        reading = selectors.EVENT_READ if self._local_sends and self._credit > 0 and not self._over else 0
        return reading | (selectors.EVENT_WRITE if self._unread else 0)

    def _watch_local(self, selector: selectors.BaseSelector, old: int, new: int) -> None:
        if not old:
            selector.register(self._local, new)
        elif not new:
            selector.unregister(self._local)
        else:
            selector.modify(self._local, new)

    def _from_agent(self, selector: selectors.BaseSelector) -> None:
        count = self._agent.recv_into(self._decoder.buffer())
        if not count:
            self._over = True
            selector.unregister(self._agent)
        self.take(self._decoder.received(count))

    def _serve_local(self, ready: int) -> None:
        if ready & selectors.EVENT_WRITE:
            sent = self._local.send(self._unread)
            del self._unread[:sent]
            if not self._over:
                self._agent.sendall(encode(self._stream, Kind.WINDOW, sent))
            self._close_direction()
        if ready & selectors.EVENT_READ and self._local_sends and not self._over:
            data = self._local.recv(min(self._credit, MAX_DATA))
            self._credit -= len(data)
            self._local_sends = bool(data)
            self._agent.sendall(data_header(self._stream, len(data)) + data if data else encode(self._stream, Kind.END))

    def _close_direction(self) -> None:
        """Tells the local reader of the end once it has been given everything."""
        if not self._agent_sends and not self._unread:
            self._local.shutdown(socket.SHUT_WR)
