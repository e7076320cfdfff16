"""A client of the agent that is as small as the protocol allows: blocking, one thread, every frame visible to the test."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

OPEN, DATA, DATA_ERR, END, WINDOW, EVENT, CALL, RESULT, ERROR, CANCEL = range(10)
CREDIT = 262_144
PATIENCE = 30.0
"""Seconds without a frame after which a test has failed."""


class AgentError(Exception):
    """The agent answered ERROR."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class ConnectionClosed(Exception):
    """The agent closed the connection."""


@dataclass
class Outcome:
    """All that one operation answered."""

    result: dict[str, Any] = field(default_factory=dict)
    data: bytes = b""
    errors: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list)


class Client:
    """Speaks frames over one connected socket; frames of streams that nobody reads now are kept."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._received = bytearray()
        self._waiting: dict[int, deque[tuple[int, Any]]] = {}
        self._next = 0
        self.descriptors: list[int] = []
        self.grants = True  # whether credit is given back as soon as data comes

    def send(self, stream: int, kind: int, body: Any = None) -> None:
        frame = msgspec.msgpack.encode([stream, kind, body])
        self.socket.sendall(struct.pack(">I", len(frame)) + frame)

    def open(self, op: str, **parameters: Any) -> int:
        self._next += 1
        self._waiting[self._next] = deque()
        self.send(self._next, OPEN, {"op": op, **parameters})
        return self._next

    def _split(self) -> Iterator[tuple[int, int, Any]]:
        while len(self._received) >= 4:
            (length,) = struct.unpack_from(">I", self._received)
            if len(self._received) < 4 + length:
                return
            stream, kind, body = msgspec.msgpack.decode(bytes(self._received[4 : 4 + length]))
            del self._received[: 4 + length]
            yield stream, kind, body

    def pump(self, patience: float = PATIENCE) -> None:
        """Waits for bytes and sorts the frames in them to their streams."""
        if not select.select([self.socket], [], [], patience)[0]:
            raise TimeoutError("no frame came from the agent")
        try:
            chunk, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 20, 4)
        except ConnectionResetError:  # closed while something was on its way there
            raise ConnectionClosed from None
        self.descriptors.extend(descriptors)
        if not chunk:
            raise ConnectionClosed
        self._received += chunk
        for stream, kind, body in self._split():
            self._waiting.setdefault(stream, deque()).append((kind, body))
            if self.grants and kind in (DATA, DATA_ERR):
                # An agent that has said its last words needs no credit for them.
                with suppress(BrokenPipeError, ConnectionResetError):
                    self.send(stream, WINDOW, len(body))

    def receive(self, stream: int, patience: float = PATIENCE) -> tuple[int, Any]:
        """The next frame of one stream."""
        frames = self._waiting.setdefault(stream, deque())
        deadline = time.monotonic() + patience
        while not frames:
            self.pump(max(0.0, deadline - time.monotonic()))
        return frames.popleft()

    def answers_until_closed(self) -> list[tuple[int, int]]:
        """Reads until the agent closes; the (stream, kind) of every frame that nobody has read yet."""
        try:
            while True:
                self.pump()
        except ConnectionClosed:
            return [(stream, kind) for stream, frames in self._waiting.items() for kind, _ in frames]

    def event(self, stream: int) -> dict[str, Any]:
        kind, body = self.receive(stream)
        if kind == ERROR:
            raise AgentError(**body)
        assert kind == EVENT, (kind, body)
        return dict(body)

    def finish(self, stream: int) -> Outcome:
        """Reads the stream to its last frame."""
        outcome = Outcome()
        while True:
            kind, body = self.receive(stream)
            if kind == ERROR:
                raise AgentError(**body)
            if kind == RESULT:
                outcome.result = body
                return outcome
            if kind == EVENT:
                outcome.events.append(body)
            elif kind == DATA:
                outcome.data += body
            elif kind == DATA_ERR:
                outcome.errors += body

    def call(self, op: str, **parameters: Any) -> Outcome:
        return self.finish(self.open(op, **parameters))

    def run(self, *argv: str, **parameters: Any) -> Outcome:
        return self.call("exec", argv=list(argv), **parameters)

    def upload(self, stream: int, content: bytes, piece: int = 65_536) -> None:
        """Sends `content` and END, within the credit that the agent gives."""
        credit = CREDIT
        frames = self._waiting[stream]
        for at in range(0, len(content), piece):
            part = content[at : at + piece]
            while credit < len(part):
                while not any(kind == WINDOW for kind, _ in frames):
                    self.pump()
                credit += sum(body for kind, body in frames if kind == WINDOW)
                others = [(kind, body) for kind, body in frames if kind != WINDOW]
                frames.clear()
                frames.extend(others)
            self.send(stream, DATA, part)
            credit -= len(part)
        self.send(stream, END)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.socket.close()
