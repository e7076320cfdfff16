"""One request to a sandbox's agent and its answer, synchronously: for the few things that a machine itself asks of its agent."""

from __future__ import annotations

import socket
from typing import Any

from agentenv.errors import InfrastructureError, ProtocolError
from agentenv.guest.frames import Decoder, Kind, encode

_FIRST = 1


def call(connection: socket.socket, op: str, *, timeout: float, content: bytes | None = None, **parameters: object) -> dict[str, Any]:
    """Sends `op` (docs/agent-protocol.md) over a fresh blocking connection, which is closed, and returns the body of its RESULT.

    `content` is what the operation takes, no more than the credit of a stream. `timeout` in seconds is for each wait. Raises
    `InfrastructureError` when the agent refuses, is gone or does not answer.
    """
    with connection:
        return ask(connection, op, number=_FIRST, timeout=timeout, content=content, **parameters)


def ask(
    connection: socket.socket, op: str, *, number: int, timeout: float, content: bytes | None = None, **parameters: object
) -> dict[str, Any]:
    """As `call`, but the connection stays open: `number` says how many operations it has had with this one."""
    decoder = Decoder()
    connection.settimeout(timeout)
    try:
        connection.sendall(encode(number, Kind.OPEN, {"op": op, **parameters}))
        if content is not None:
            connection.sendall(encode(number, Kind.DATA, content) + encode(number, Kind.END, None))
        while True:
            count = connection.recv_into(decoder.buffer())
            if count == 0:
                raise InfrastructureError(f"the sandbox's agent closed the connection instead of answering '{op}'.")
            for stream, kind, body in decoder.received(count):
                if stream == number and kind is Kind.RESULT and isinstance(body, dict):
                    return body
                if stream == number and kind is Kind.ERROR and isinstance(body, dict):
                    raise InfrastructureError(f"the sandbox's agent refused '{op}': {body.get('message')} ({body.get('code')}).")
                if stream == number:
                    raise ProtocolError(f"the agent answered '{op}' with a {kind.name} frame.")
    except TimeoutError as error:
        raise InfrastructureError(f"the sandbox's agent did not answer '{op}' in {timeout:g} s.") from error
    except OSError as error:
        raise InfrastructureError(f"the connection to the sandbox's agent broke in '{op}': {error.strerror or error}.") from error
