"""One connection to `agent.sock`, as the switchboard sees it."""

from __future__ import annotations

import socket
from collections import deque

from agentenv.isolation.gvisor.frames import FrameReader, Passing

_READ = 1 << 18
_SLOW = 4 << 20
"""Who leaves so many bytes waiting is not listened to until it has read some (docs/agent-protocol.md)."""

_HOPELESS = 64 << 20
"""Who leaves so many is cut off: flow control allows it to no well-behaved one."""


class Client:
    """Lives in the switchboard's thread."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.streams: dict[int, int] = {}
        """Its own numbers of its open streams, and those that they have on the trunk."""
        self.watched = 0
        """The events that the switchboard waits for."""
        self._reader = FrameReader()
        self._out: deque[memoryview] = deque()
        self._waiting = 0
        self._greeted = False

    @property
    def wants_to_send(self) -> bool:
        return bool(self._out)

    @property
    def is_slow(self) -> bool:
        return self._waiting > _SLOW

    @property
    def is_hopeless(self) -> bool:
        return self._waiting > _HOPELESS

    def greet(self, hello: bytes | None) -> bool:
        """Sends the agent's `hello` once there is one; True when it was sent now."""
        if self._greeted or hello is None:
            return False
        self._greeted = True
        self._out.appendleft(memoryview(hello))
        self._waiting += len(hello)
        return True

    def receive(self) -> list[Passing]:
        """The frames that have come. Raises `EOFError` when the connection is over, `ProtocolError`."""
        try:
            data = self.socket.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return []
        except ConnectionError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        return self._reader.feed(data)

    def send(self, frame: bytes) -> None:
        """Queues one frame."""
        self._out.append(memoryview(frame))
        self._waiting += len(frame)

    def flush(self) -> None:
        """Sends as much as the socket takes. Raises `EOFError` when the connection is over."""
        while self._out:
            first = self._out[0]
            try:
                count = self.socket.send(first)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise EOFError from error
            self._waiting -= count
            if count == len(first):
                self._out.popleft()
            else:
                self._out[0] = first[count:]

    def close(self) -> None:
        self.socket.close()
