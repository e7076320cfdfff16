"""The thread that connects those who dial an agent with the one stream that leads to it.

A thread of its own, since callers block on their sockets in any thread, the event loop's included, and must be served meanwhile. Everything
that belongs to a line is touched by this thread only; others ask it by `Switchboard.do`.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from agentenv.errors import InfrastructureError, ProtocolError
from agentenv.isolation.gvisor.client import Client
from agentenv.isolation.gvisor.trunk import OUT_LIMIT, Carried, Trunk

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Line:
    """One agent: its trunk and the listening socket at which connections to it come in."""

    trunk: Trunk
    listener: socket.socket
    watched: int = selectors.EVENT_READ
    closed: bool = False


class Switchboard:
    """Serves the lines of one backend. Start it with `open`, end it with `close`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._awake)
        self._wishes: deque[Callable[[], None]] = deque()
        self._running = True
        self._thread = threading.Thread(target=self._run, name="agentenv-gvisor", daemon=True)

    @classmethod
    def open(cls) -> Switchboard:
        """A running one."""
        board = cls()
        board._thread.start()
        return board

    def do(self, action: Callable[[], Result]) -> Future[Result]:
        """Has the thread do something, and returns what will come of it."""
        done: Future[Result] = Future()
        done.set_running_or_notify_cancel()

        def carry_out() -> None:
            try:
                done.set_result(action())
            except (OSError, InfrastructureError) as error:
                done.set_exception(error)

        self._wishes.append(carry_out)
        self._wake.send(b"!")
        return done

    def attach(self, line: Line) -> Future[None]:
        """Takes the line up, from now on in charge of its sockets."""
        return self.do(lambda: self._attach(line))

    def detach(self, line: Line) -> Future[None]:
        """Breaks all its connections off and closes its sockets; nothing happens when that has happened."""
        return self.do(lambda: self._close_line(line))

    def capture(self, line: Line) -> Future[Carried]:
        """Where the line's stream stands, of an agent that stands still."""
        return self.do(lambda: self._capture(line))

    def close(self) -> None:
        """Ends the thread; every line must have been detached. Idempotent."""
        if not self._thread.is_alive():
            return

        def stop() -> None:
            self._running = False

        self.do(stop)
        self._thread.join()
        self._selector.close()
        self._wake.close()
        self._woken.close()

    def _run(self) -> None:
        while self._running:
            for key, events in self._selector.select():
                handler: Callable[[int], None] = key.data
                handler(events)

    def _awake(self, _: int) -> None:
        self._woken.recv(4096)
        while self._wishes:
            self._wishes.popleft()()

    def _attach(self, line: Line) -> None:
        line.listener.setblocking(False)
        self._selector.register(line.trunk.socket, line.watched, lambda events: self._trunk_ready(line, events))
        self._selector.register(line.listener, selectors.EVENT_READ, lambda _: self._accept(line))
        self._settle(line)

    def _accept(self, line: Line) -> None:
        try:
            connection, _ = line.listener.accept()
        except OSError:
            return  # it has gone again
        client = Client(connection)
        client.watched = selectors.EVENT_READ
        line.trunk.clients.add(client)
        self._selector.register(connection, client.watched, lambda events: self._client_ready(line, client, events))
        client.greet(line.trunk.hello)
        self._serve(line, client)

    def _trunk_ready(self, line: Line, events: int) -> None:
        if line.closed:
            return
        try:
            touched = line.trunk.receive() if events & selectors.EVENT_READ else []
        except (EOFError, ProtocolError):
            self._close_line(line)
            return
        for client in touched:
            self._serve(line, client)
        self._settle(line)

    def _client_ready(self, line: Line, client: Client, events: int) -> None:
        if client not in line.trunk.clients:
            return
        try:
            if events & selectors.EVENT_READ:
                for frame in client.receive():
                    line.trunk.take(client, frame)
        except (EOFError, ProtocolError):
            self._close_client(line, client)
        else:
            self._serve(line, client)
        self._settle(line)

    def _serve(self, line: Line, client: Client) -> None:
        """Sends a client what waits for it, and decides what to wait for."""
        try:
            client.flush()
        except EOFError:
            self._close_client(line, client)
            return
        if client.is_hopeless:
            self._close_client(line, client)
            return
        heard = not client.is_slow and line.trunk.waiting < OUT_LIMIT
        wanted = (selectors.EVENT_READ if heard else 0) | (selectors.EVENT_WRITE if client.wants_to_send else 0)
        self._watch(client.socket, client.watched, wanted, lambda events: self._client_ready(line, client, events))
        client.watched = wanted

    def _settle(self, line: Line) -> None:
        """Sends the agent what waits for it. When there is room again, clients that were held back are heard."""
        if line.closed:
            return
        was_full = line.trunk.waiting >= OUT_LIMIT
        line.trunk.flush()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.trunk.wants_to_send else 0)
        if wanted != line.watched:
            self._watch(line.trunk.socket, line.watched, wanted, lambda events: self._trunk_ready(line, events))
            line.watched = wanted
        if was_full != (line.trunk.waiting >= OUT_LIMIT):
            for client in list(line.trunk.clients):
                self._serve(line, client)

    def _watch(self, sock: socket.socket, before: int, wanted: int, handler: Callable[[int], None]) -> None:
        if before == wanted:
            return
        if not before:
            self._selector.register(sock, wanted, handler)
        elif not wanted:
            self._selector.unregister(sock)
        else:
            self._selector.modify(sock, wanted, handler)

    def _capture(self, line: Line) -> Carried:
        if line.closed:
            raise InfrastructureError("the agent has closed its stream.")
        try:
            touched = line.trunk.drain()
        except EOFError as error:
            self._close_line(line)
            raise InfrastructureError("the agent has closed its stream.") from error
        for client in touched:
            self._serve(line, client)
        return line.trunk.capture()

    def _close_client(self, line: Line, client: Client) -> None:
        if client.watched:
            self._selector.unregister(client.socket)
            client.watched = 0
        line.trunk.leave(client)
        client.close()

    def _close_line(self, line: Line) -> None:
        if line.closed:
            return
        line.closed = True
        for client in list(line.trunk.clients):
            self._close_client(line, client)
        for sock in (line.trunk.socket, line.listener):
            if sock in self._selector.get_map():  # taking the line up may have failed
                self._selector.unregister(sock)
        line.listener.close()
        line.trunk.close()
