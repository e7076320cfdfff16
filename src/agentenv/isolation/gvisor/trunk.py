"""One agent's only stream, shared by any number of connections as if each had the agent to itself.

gVisor keeps exactly one kind of connection to the host over a checkpoint: the standard streams of the first process. So the agent gets one
socket, its standard input, and here each connection's streams get numbers of their own on it. What a checkpoint needs to know of it, the
bytes that were under way at that moment, is `Carried`: with it the restored agent, which has no idea that it is another one, is spoken to
on a new socket from the very byte at which the old one was left.
"""

from __future__ import annotations

import array
import fcntl
import socket
import termios
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from agentenv.errors import InfrastructureError, ProtocolError
from agentenv.guest.frames import Kind
from agentenv.isolation.gvisor.frames import FrameReader, Passing, content_size, join, pack

if TYPE_CHECKING:
    from agentenv.isolation.gvisor.client import Client

_READ = 1 << 18
_SENT_KEPT = 1 << 20
"""Bytes sent last that are remembered: more than the kernel holds in a socket (net.core.wmem_max allows 212,992 by default)."""

_SOCKET_BYTES = 1 << 17
OUT_LIMIT = 1 << 20
"""With so many bytes waiting for the agent no more are read from connections."""

_SAME_NUMBERS = 1 << 31


class Carried(msgspec.Struct, frozen=True):
    """Where a stream to an agent stood: `received` begins a frame of the agent that has not ended yet, `unread` is what the agent had not
    read, up to the end of a frame, and `stream` is the next number that it has not seen."""

    received: bytes
    unread: bytes
    stream: int


@dataclass(slots=True)
class Channel:
    """Whose a stream of the trunk is, and its number there; without a client only its end is waited for."""

    client: Client | None
    number: int


class Trunk:
    """Everything about one agent's stream. Lives in the switchboard's thread, and is touched by nobody else."""

    def __init__(self, near: socket.socket, far: socket.socket, carried: Carried | None = None) -> None:
        """`near` is ours; `far`, the end that the agent was given, tells how much of what was sent it has not read. Takes both over."""
        near.setblocking(False)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self.socket = near
        self._far = far
        self._reader = FrameReader(carried.received if carried else b"")
        self._out: deque[memoryview] = deque()
        self._begun = False
        self._sent: deque[bytes] = deque()
        self._sent_size = 0
        self.waiting = 0
        self._channels: dict[int, Channel] = {}
        self._next = carried.stream if carried else 1
        self._renewing = carried is not None
        self.clients: set[Client] = set()
        self.hello: bytes | None = None
        self.greeted: Future[None] = Future()
        self.greeted.set_running_or_notify_cancel()
        if carried is not None:
            if carried.unread:
                self._queue(carried.unread)
            self._queue(join(0, Kind.CANCEL, pack(None)))

    @property
    def wants_to_send(self) -> bool:
        return bool(self._out)

    def take(self, client: Client, frame: Passing) -> None:
        """Passes a connection's frame on to the agent. Raises `ProtocolError` when the connection must be closed for it."""
        if frame.kind is Kind.OPEN:
            self._open(client, frame)
            return
        number = client.streams.get(frame.stream)
        if number is not None:
            self._queue(join(number, frame.kind, frame.body))

    def _open(self, client: Client, frame: Passing) -> None:
        if frame.stream == 0 or frame.stream in client.streams:
            raise ProtocolError(f"stream {frame.stream} cannot be opened.")
        if _wants_descriptor(frame.body):
            refusal = {"code": "EOPNOTSUPP", "message": "gVisor cannot hand descriptors out of a sandbox; dial without pass_fd"}
            client.send(join(frame.stream, Kind.ERROR, pack(refusal)))
            return
        number = self._next
        opening = join(number, frame.kind, frame.body)
        self._next = number % _SAME_NUMBERS + 1
        client.streams[frame.stream] = number
        self._channels[number] = Channel(client, frame.stream)
        self._queue(opening)

    def leave(self, client: Client) -> None:
        """A connection is gone: what it had open is cancelled, as the agent does with a connection of its own."""
        self.clients.discard(client)
        for number in client.streams.values():
            self._channels[number].client = None
            self._queue(join(number, Kind.CANCEL, pack(None)))
        client.streams.clear()

    def receive(self) -> list[Client]:
        """Reads what the agent has sent and gives it to the connections; returns those that were given something.

        Raises `EOFError` when the agent is gone, `ProtocolError` when it sends what it must not.
        """
        data = self._read()
        return self._hand_out(data) if data else []

    def drain(self) -> list[Client]:
        """The same for all that the agent has sent until now."""
        touched: dict[Client, None] = {}
        while data := self._read():
            touched.update(dict.fromkeys(self._hand_out(data)))
        return [*touched]

    def _read(self) -> bytes | None:
        try:
            data = self.socket.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return None
        except ConnectionError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        return data

    def _hand_out(self, data: bytes) -> list[Client]:
        delivered = [client for frame in self._reader.feed(data) if (client := self._deliver(frame)) is not None]
        return [*dict.fromkeys(delivered), *self._greet()]

    def _deliver(self, frame: Passing) -> Client | None:
        if frame.stream == 0:
            self.hello = join(0, frame.kind, frame.body)
            self._renewing = False
            if not self.greeted.done():
                self.greeted.set_result(None)
            return None
        channel = self._channels.get(frame.stream)
        if channel is None or self._renewing:
            return None
        if frame.kind in (Kind.RESULT, Kind.ERROR):
            del self._channels[frame.stream]
            if channel.client is not None:
                del channel.client.streams[channel.number]
        if channel.client is not None:
            channel.client.send(join(channel.number, frame.kind, frame.body))
        elif frame.kind in (Kind.DATA, Kind.DATA_ERR):
            # Nobody reads it, but its sender must not wait for ever.
            self._queue(join(frame.stream, Kind.WINDOW, pack(content_size(frame.body))))
        return channel.client

    def _greet(self) -> list[Client]:
        return [client for client in self.clients if client.greet(self.hello)]

    def flush(self) -> None:
        """Sends as much as the socket takes. A broken one is found by `receive`."""
        while self._out:
            first = self._out[0]
            try:
                count = self.socket.send(first)
            except OSError:
                return
            self._remember(bytes(first[:count]))
            self.waiting -= count
            self._begun = count < len(first)
            if self._begun:
                self._out[0] = first[count:]
            else:
                self._out.popleft()

    def _queue(self, frame: bytes) -> None:
        self._out.append(memoryview(frame))
        self.waiting += len(frame)

    def _remember(self, sent: bytes) -> None:
        self._sent.append(sent)
        self._sent_size += len(sent)
        while self._sent_size - len(self._sent[0]) >= _SENT_KEPT:
            self._sent_size -= len(self._sent.popleft())

    def capture(self) -> Carried:
        """Where the stream stands. The agent must be standing still, and all it sent have been received."""
        count = array.array("i", [0])
        fcntl.ioctl(self._far, termios.FIONREAD, count)
        sent = b"".join(self._sent)
        if count[0] > len(sent):
            raise InfrastructureError(f"{count[0]} bytes wait for the agent, and only {len(sent)} are remembered.")
        unread = sent[len(sent) - count[0] :]
        rest = bytes(self._out[0]) if self._begun else b""
        return Carried(bytes(self._reader.partial), unread + rest, self._next)

    def close(self) -> None:
        """The agent is gone, or shall go: without its stream it ends."""
        self.socket.close()
        self._far.close()
        if not self.greeted.done():
            self.greeted.set_exception(EOFError("the agent has closed its stream"))


def _wants_descriptor(body: bytes) -> bool:
    if b"pass_fd" not in body:
        return False
    try:
        opening = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False  # the agent's to refuse
    return isinstance(opening, dict) and opening.get("op") == "dial" and opening.get("pass_fd") is True
