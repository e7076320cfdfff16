"""The host's end of the step protocol on one socket: its hello, and requests that are answered by a value."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from agentenv.envs.guest import values
from agentenv.envs.guest.layout import Layout, layout_of
from agentenv.envs.guest.spaces import Description
from agentenv.envs.guest.wire import PROTOCOL, Kind, WireError, frame, receive
from agentenv.envs.gymnasium_spaces import build
from agentenv.errors import EnvironmentFault, ProtocolError


@dataclass(frozen=True, slots=True)
class Hello:
    """What an environment says of itself on connecting."""

    body: bytes = field(repr=False)
    """The JSON it came as: two environments are alike when theirs is."""
    environment: str = field(compare=False)
    observation: Description = field(compare=False)
    action: Description = field(compare=False)
    render_modes: tuple[str, ...]
    render_fps: float | None
    can_save: bool
    accepts_scores: bool

    @classmethod
    def parse(cls, body: bytes | bytearray) -> Hello:
        """Raises `ProtocolError` for a hello of another protocol, or one that makes no sense."""
        try:
            content = values.loads(body)
            if content["protocol"] != PROTOCOL:
                raise ProtocolError(f"the environment speaks step protocol {content['protocol']!r}; this is {PROTOCOL}.")
            fps, abilities = content.get("render_fps"), content["capabilities"]
            build(content["observation_space"])
            build(content["action_space"])
            return cls(
                body=bytes(body),
                environment=str(content["environment"]),
                observation=content["observation_space"],
                action=content["action_space"],
                render_modes=tuple(str(mode) for mode in content["render_modes"]),
                render_fps=fps if isinstance(fps, (int, float)) else None,
                can_save=bool(abilities["save"]),
                accepts_scores=bool(abilities["scores"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as problem:
            raise ProtocolError(f"the environment's hello makes no sense: {problem}") from problem

    @property
    def observation_layout(self) -> Layout | None:
        return layout_of(self.observation)

    @property
    def action_layout(self) -> Layout | None:
        return layout_of(self.action)


class StepStream:
    """A connected socket to an environment's server. Not for use by two threads at once.

    Time limits are the kernel's (SO_RCVTIMEO), so that a step costs one system call each way. A request that breaks off raises `OSError`
    (`TimeoutError`, `EndOfStream`), what the protocol does not allow `ProtocolError`; after either the stream is of no more use.
    """

    def __init__(self, stream: socket.socket, *, timeout: float) -> None:
        self.socket = stream
        self._limit = 0.0
        stream.settimeout(None)
        self.limit(timeout)
        kind, _, body = self._receive()
        if kind is not Kind.HELLO:
            raise ProtocolError(f"the environment began with a {kind.name} in place of its hello.")
        self.hello = Hello.parse(body)

    def limit(self, seconds: float) -> None:
        """How long the kernel lets the next sends and receives wait."""
        if seconds == self._limit:
            return
        self._limit = seconds
        whole, part = divmod(max(seconds, 0.001), 1.0)
        value = struct.pack("@ll", int(whole), int(part * 1_000_000))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def ask(self, kind: Kind, body: bytes = b"", *, expect: Kind = Kind.VALUE) -> bytearray:
        """One request and the body of its answer. Raises `EnvironmentFault` when the environment's code raised."""
        self.send(frame(kind, body))
        answer, _, content = self._receive()
        if answer is Kind.ERROR:
            raise fault(self.hello.environment, content)
        if answer is not expect:
            raise ProtocolError(f"the environment answered {kind.name} with {answer.name}, not {expect.name}.")
        return content

    def ask_value(self, kind: Kind, body: bytes = b"") -> Any:
        """Like `ask`, for an answer that is a JSON value."""
        return decode(self.ask(kind, body))

    def send(self, content: bytes | memoryview) -> None:
        try:
            self.socket.sendall(content)
        except BlockingIOError:
            raise TimeoutError("the environment takes no more requests") from None

    def _receive(self) -> tuple[Kind, int, bytearray]:
        try:
            return receive(self.socket)
        except BlockingIOError:
            raise TimeoutError("the environment does not answer") from None
        except WireError as problem:
            raise ProtocolError(f"the environment broke the step protocol: {problem}.") from problem

    def close(self) -> None:
        self.socket.close()


def decode(body: bytes | bytearray | memoryview) -> Any:
    """A JSON value from an environment. Raises `ProtocolError` for anything else."""
    try:
        return values.loads(body)
    except ValueError as problem:
        raise ProtocolError(f"the environment sent a value that cannot be read: {problem}.") from problem


def fault(environment: str, body: bytes | bytearray | memoryview) -> EnvironmentFault:
    """The exception that an ERROR frame stands for."""
    content = decode(body)
    if not isinstance(content, dict):
        raise ProtocolError("the environment sent an ERROR that is no object.")
    texts = {key: str(content.get(key, "")) for key in ("type", "message", "traceback")}
    return EnvironmentFault(environment, kind=texts["type"], message=texts["message"], traceback=texts["traceback"])
