"""One multiplexed connection to an agent, driven by the running asyncio loop.

It watches the socket itself instead of through a transport: a command's whole way is then one `send`, one wake-up of the loop, one `recv`.
Memory stays bounded without a pause button, because each stream's flow control bounds what may be under way.
A connection belongs to one generation of one sandbox and is never opened again: when it breaks, each of its streams fails.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any

from agentenv.errors import AgentEnvError, ProtocolError
from agentenv.guest.errors import ConnectionLost
from agentenv.guest.frames import Body, Decoder, Frame, Kind, encode
from agentenv.guest.stream import Stream

PROTOCOL = 1


class Connection:
    """The host's end. Use from the loop that opened it only."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = sock
        self._loop = loop
        self._decoder = Decoder()
        self._streams: dict[int, Stream] = {}
        self._last_stream = 0
        self._unsent: deque[memoryview] = deque()
        self._failure: AgentEnvError | None = None
        self.hello: Mapping[str, Any] | None = None
        """The agent's greeting (`protocol`, `version`, `pid`) once it has come."""

    @classmethod
    def open(cls, sock: socket.socket) -> Connection:
        """Takes over a connected stream socket. Nothing is waited for: operations may be started before the agent even runs."""
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        connection = cls(sock, loop)
        loop.add_reader(sock.fileno(), connection._readable)
        return connection

    @property
    def closed(self) -> bool:
        """Whether no operation can be started any more."""
        return self._failure is not None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that this connection lives in."""
        return self._loop

    def start(self, stream: Stream, operation: str, parameters: Mapping[str, Any]) -> None:
        """Opens `stream` for an operation; parameters that are None are left out. Raises `ConnectionLost` on a closed connection."""
        if self._failure is not None:
            raise ConnectionLost(str(self._failure))
        body: dict[str, Any] = {"op": operation}
        for name, value in parameters.items():
            if value is not None:
                body[name] = value
        number = self._last_stream + 1
        frame = encode(number, Kind.OPEN, body)
        self._last_stream = number
        self._streams[number] = stream
        stream.opened(self, number)
        self.write(frame)

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """An operation without content: sends its parameters, returns its RESULT. Raises `AgentFailure`, `ConnectionLost`."""
        stream = Stream(operation)
        self.start(stream, operation, parameters)
        return await stream.result()

    def close(self, reason: AgentEnvError | None = None) -> None:
        """Ends the connection; streams that are still open fail with `reason`. Idempotent."""
        if self._failure is None:
            self._fail(reason or ConnectionLost("the connection to the agent was closed by its owner."))

    def send(self, stream: int, kind: Kind, body: Body = None) -> None:
        """Sends one frame; on a connection that is already broken nothing (its streams have been told)."""
        self.write(encode(stream, kind, body))

    def write(self, *parts: bytes | memoryview) -> None:
        """Sends bytes of whole frames now as far as the socket takes them, the rest as soon as it can."""
        if self._failure is not None:
            return
        if self._unsent:
            self._unsent.extend(memoryview(part) for part in parts)
            return
        try:
            sent = self._socket.send(parts[0]) if len(parts) == 1 else self._socket.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._fail_soon(error)
            return
        for part in parts:
            if sent < len(part):
                self._unsent.append(memoryview(part)[sent:])
            sent = max(0, sent - len(part))
        if self._unsent:
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        try:
            sent = self._socket.sendmsg([*self._unsent][:64])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(_lost(error))
            return
        while sent and sent >= len(self._unsent[0]):
            sent -= len(self._unsent.popleft())
        if sent:
            self._unsent[0] = self._unsent[0][sent:]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        try:
            count = self._socket.recv_into(self._decoder.buffer())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(_lost(error))
            return
        if not count:
            self._fail(ConnectionLost("the agent closed its stream."))
            return
        try:
            for frame in self._decoder.received(count):
                self._dispatch(frame)
        except ProtocolError as error:
            self._fail(error)

    def _dispatch(self, frame: Frame) -> None:
        number, kind, body = frame
        if number == 0:
            self._connection_event(kind, body)
            return
        stream = self._streams.get(number)
        if stream is None:
            if number > self._last_stream:
                raise ProtocolError(f"the agent sent a {kind.name} frame on the stream {number}, which nobody has opened.")
            return
        if kind is Kind.RESULT or kind is Kind.ERROR:
            del self._streams[number]
        stream.frame(kind, body)

    def _connection_event(self, kind: Kind, body: Body) -> None:
        if kind is not Kind.EVENT or not isinstance(body, dict) or body.get("event") != "hello" or self.hello is not None:
            raise ProtocolError(f"the agent sent a {kind.name} frame on the connection itself that is no first hello.")
        if body.get("protocol") != PROTOCOL:
            raise ProtocolError(f"the agent speaks protocol {body.get('protocol')!r}; this host speaks {PROTOCOL}.")
        self.hello = body

    def _fail_soon(self, error: OSError) -> None:
        """Fails from the loop and not from inside a call that sends, whose caller would not expect its own stream to end under it."""
        self._loop.call_soon(self.close, _lost(error))

    def _fail(self, reason: AgentEnvError) -> None:
        self._failure = reason
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._unsent.clear()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(reason)


def _lost(error: OSError) -> ConnectionLost:
    return ConnectionLost(f"the stream to the agent broke: {error.strerror or error}.")
