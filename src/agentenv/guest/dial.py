"""A plain, blocking socket into a sandbox: to a port of its loopback or to a unix socket in it.

Over a unix socket the agent hands the connected descriptor itself out, and no hop is left in the data path. Over other streams (vsock,
serial) the bytes are spliced through the agent's stream by a small thread.
"""

from __future__ import annotations

import socket
from typing import Any

from agentenv.errors import ProtocolError
from agentenv.guest.errors import AgentFailure, ConnectionLost
from agentenv.guest.frames import Decoder, Frame, Kind, encode
from agentenv.guest.splice import splice

STREAM = 1
_MAX_DESCRIPTORS = 8


def dial(sock: socket.socket, target: int | str, *, pass_descriptor: bool, timeout: float | None = 10.0) -> socket.socket:
    """Connects to `target`: a TCP port on the sandbox's loopback, or the path of a unix socket in it (`@name`: the abstract namespace).

    `sock` is a fresh stream to the agent, and is taken over (closed on failure). `timeout`: seconds for the connection to come up.
    Returns a blocking socket. Raises `AgentFailure` (`ECONNREFUSED`, say), `ConnectionLost`, `ProtocolError`, `TimeoutError`.
    """
    body: dict[str, Any] = {"op": "dial", "pass_fd": pass_descriptor}
    body["path" if isinstance(target, str) else "port"] = target
    dialer = _Dialer(sock)
    try:
        sock.settimeout(timeout)
        sock.sendall(encode(STREAM, Kind.OPEN, body))
        rest = dialer.connected(target)
        if pass_descriptor:
            sock.close()
            return dialer.socket(target)
        sock.settimeout(None)
        return splice(sock, dialer.decoder, rest, STREAM)
    except BaseException:
        dialer.close_descriptors()
        sock.close()
        raise


class _Dialer:
    """The conversation up to `connected`."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.decoder = Decoder()
        self._descriptors: list[int] = []

    def connected(self, target: int | str) -> list[Frame]:
        """Waits for the answer; returns the frames that came behind it."""
        while True:
            frames = self.decoder.received(self._receive())
            for position, (number, kind, body) in enumerate(frames):
                if number == 0:
                    continue
                if kind is Kind.ERROR and isinstance(body, dict):
                    raise AgentFailure(f"dial {target}", str(body.get("code")), str(body.get("message")))
                if number != STREAM or kind is not Kind.EVENT or not isinstance(body, dict) or body.get("event") != "connected":
                    raise ProtocolError(f"the agent answered 'dial' with a {kind.name} frame on the stream {number}.")
                return frames[position + 1 :]

    def socket(self, target: int | str) -> socket.socket:
        """The descriptor that came with `connected`, as a blocking socket."""
        if len(self._descriptors) != 1:
            raise ProtocolError(f"the agent passed {len(self._descriptors)} descriptors with its answer to 'dial {target}', not one.")
        try:
            connected = socket.socket(fileno=self._descriptors[0])
        except OSError as error:
            raise ProtocolError(f"the agent passed a descriptor that is no socket in answer to 'dial {target}'.") from error
        self._descriptors.clear()
        connected.settimeout(None)
        return connected

    def close_descriptors(self) -> None:
        """Closes what came and was not used."""
        for descriptor in self._descriptors:
            socket.close(descriptor)
        self._descriptors.clear()

    def _receive(self) -> int:
        space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4)
        try:
            count, messages, _, _ = self._socket.recvmsg_into([self.decoder.buffer()], space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError as error:
            raise ConnectionLost(f"the stream to the agent broke: {error.strerror or error}.") from error
        for level, kind, data in messages:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors += memoryview(data[: len(data) // 4 * 4]).cast("i").tolist()
        if not count:
            raise ConnectionLost("the agent closed its stream.")
        return count
