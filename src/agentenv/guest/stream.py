"""One stream of a connection: an operation under way, with its flow control in both directions.

`Stream` alone is enough for operations that only answer; those with content derive from it and override `on_data` and `on_event`, which
are called from the socket's callback and therefore must neither block nor raise anything but `ProtocolError`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

from agentenv.errors import AgentEnvError, ProtocolError
from agentenv.guest.errors import AgentFailure, ConnectionLost
from agentenv.guest.frames import INITIAL_CREDIT, MAX_DATA, Body, Content, Kind, data_header


class FrameSender(Protocol):
    """What a stream needs of its connection: a way for its frames out."""

    def send(self, stream: int, kind: Kind, body: Body = None) -> None:
        """Sends one frame; nothing on a connection that is broken."""

    def write(self, *parts: bytes | memoryview) -> None:
        """Sends the bytes of whole frames."""


class Stream:
    """An open operation; its last frame sets `finished`."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.finished: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._connection: FrameSender | None = None
        self._number = 0
        self._send_credit = INITIAL_CREDIT
        self._receive_credit = INITIAL_CREDIT
        self._window = INITIAL_CREDIT
        self._consumed = 0
        self._ended = False
        self._cancelled = False
        self._over = False
        self._credit_waiter: asyncio.Future[None] | None = None

    def opened(self, connection: FrameSender, number: int) -> None:
        """The connection has given the stream its number."""
        self._connection, self._number = connection, number

    def on_data(self, kind: Kind, data: Content) -> None:
        """Content came, to be copied now; whoever takes it in calls `consumed(len(data))` then or later."""
        raise ProtocolError(f"the agent sent content in answer to {self.operation!r}, which has none.")

    def on_event(self, event: str, body: dict[str, Any]) -> None:
        """Something happened that is not the end."""
        raise ProtocolError(f"the agent sent the event {event!r} in answer to {self.operation!r}, which has none.")

    def on_end(self) -> None:
        """The agent sends no more content."""

    def on_finished(self) -> None:
        """The last frame came, or the connection is gone: `finished` is done."""

    @property
    def over(self) -> bool:
        """Whether the last frame has come or the connection is gone."""
        return self._over

    async def result(self) -> dict[str, Any]:
        """Waits for the RESULT. A cancelled waiter cancels the operation. Raises `AgentFailure`, `ConnectionLost`, `ProtocolError`."""
        try:
            return await self.finished
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Tells the agent to stop and free what the operation holds; what still comes is dropped. Idempotent."""
        if not self._over and not self._cancelled:
            self._cancelled = True
            self._live().send(self._number, Kind.CANCEL)

    def consumed(self, count: int) -> None:
        """`count` received bytes need no more room here, so that the agent may send as many again.

        It is told so by the half window: then it need not wait, and few frames are spent on it.
        """
        self._consumed += count
        if self._consumed >= self._window // 2 and not self._over:
            self._grant(self._consumed)
            self._consumed = 0

    def widen(self, count: int) -> None:
        """Lets the agent be `count` bytes further ahead from now on."""
        self._window += count
        self._grant(count)

    def _grant(self, count: int) -> None:
        self._receive_credit += count
        self._live().send(self._number, Kind.WINDOW, count)

    def call(self, **request: Any) -> None:
        """Sends a request about the open stream (`signal=`, `resize=`); nothing answers it."""
        if not self._over:
            self._live().send(self._number, Kind.CALL, request)

    async def send(self, data: bytes | memoryview) -> None:
        """Sends content, waiting for credit as needed. Returns early when the operation has ended: its result says why."""
        rest = memoryview(data).cast("B")
        while len(rest) and not self._over:
            if not self._send_credit:
                await self._wait_for_credit()
                continue
            size = min(len(rest), self._send_credit, MAX_DATA)
            self._send_credit -= size
            self._live().write(data_header(self._number, size), rest[:size])
            rest = rest[size:]

    def end(self) -> None:
        """Says that no more content follows. Idempotent."""
        if not self._ended and not self._over:
            self._live().send(self._number, Kind.END)
        self._ended = True

    def frame(self, kind: Kind, body: Body) -> None:
        """Takes a frame from the connection."""
        if kind is Kind.RESULT and isinstance(body, dict):
            self._finish(body)
        elif kind is Kind.ERROR and isinstance(body, dict):
            self.fail(self._failure(body))
        elif kind is Kind.WINDOW and isinstance(body, int):
            self._send_credit += body
            self._wake()
        elif self._cancelled:
            return
        elif (kind is Kind.DATA or kind is Kind.DATA_ERR) and isinstance(body, bytes | memoryview):
            self._receive_credit -= len(body)
            if self._receive_credit < 0:
                raise ProtocolError(
                    f"the agent sent {-self._receive_credit} bytes more in answer to {self.operation!r} than it was allowed to."
                )
            self.on_data(kind, body)
        elif kind is Kind.EVENT and isinstance(body, dict):
            self.on_event(str(body.get("event")), body)
        elif kind is Kind.END:
            self.on_end()
        else:
            raise ProtocolError(f"the agent sent a {kind.name} frame, which only hosts send.")

    def fail(self, error: AgentEnvError) -> None:
        """Ends the stream with an error."""
        self._over = True
        if not self.finished.done():
            self.finished.set_exception(error)
            # Read once, so that asyncio does not complain about streams whose end nobody asks for.
            self.finished.exception()
        self._wake()
        self.on_finished()

    def _finish(self, body: dict[str, Any]) -> None:
        self._over = True
        if not self.finished.done():
            self.finished.set_result(body)
        self._wake()
        self.on_finished()

    def _failure(self, body: dict[str, Any]) -> AgentFailure:
        return AgentFailure(self.operation, str(body.get("code")), str(body.get("message")))

    def _live(self) -> FrameSender:
        if self._connection is None:
            raise ConnectionLost(f"the operation {self.operation!r} was never started.")
        return self._connection

    async def _wait_for_credit(self) -> None:
        self._credit_waiter = self._credit_waiter or asyncio.get_running_loop().create_future()
        await asyncio.shield(self._credit_waiter)

    def _wake(self) -> None:
        waiter, self._credit_waiter = self._credit_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Incoming(Stream):
    """A stream whose content is read piece by piece; the agent sends on only as the reader consumes."""

    def __init__(self, operation: str) -> None:
        super().__init__(operation)
        self._pieces: deque[bytes] = deque()
        self._arrival: asyncio.Future[None] | None = None

    def on_data(self, kind: Kind, data: Content) -> None:
        self._pieces.append(bytes(data))
        self._tell()

    def on_end(self) -> None:
        self._tell()

    def on_finished(self) -> None:
        self._tell()

    async def read(self) -> bytes:
        """The next piece, b"" at the end. Raises what ended the operation otherwise."""
        while not self._pieces:
            if self._over:
                await self.result()
                return b""
            self._arrival = self._arrival or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._arrival)
        piece = self._pieces.popleft()
        self.consumed(len(piece))
        return piece

    def _tell(self) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None and not arrival.done():
            arrival.set_result(None)
