"""Connections to the agent of a guest, and the one request that every start makes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentenv.errors import InfrastructureError, ProtocolError
from agentenv.guest.frames import Decoder, Kind
from agentenv.isolation.contract import MachineSpec
from agentenv.isolation.namespace.agent_call import call
from agentenv.isolation.vm.cmdline import VSOCK_PORT

_PATH_MAX = 107  # sockaddr_un, without its final NUL
_FIRST_ATTEMPT = 0.25
_FIRST_PAUSE = 0.02
_LONGEST_ANSWER = 64


def dial_serial(path: Path, timeout: float) -> socket.socket:
    """A connection over a virtio-serial port whose other end is the unix socket `path`. The agent has said its hello, which is read.

    The guest cannot tell two conversations apart whose end and beginning come at the same moment, nor one from before its memory was
    copied. So where something else than a hello comes, or for a while nothing, the port is closed, left alone for long enough to be
    noticed, and opened anew, each time more patiently. `timeout` in seconds for all of it. Raises `TimeoutError`, `OSError` where there is
    no socket.
    """
    deadline, attempt, pause = time.monotonic() + timeout, _FIRST_ATTEMPT, _FIRST_PAUSE
    while (left := deadline - time.monotonic()) > 0:
        connection = connect(path, left)
        try:
            if _greeted(connection, min(attempt, left)):
                connection.settimeout(None)
                return connection
        except BaseException:
            connection.close()
            raise
        connection.close()
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        attempt, pause = attempt * 2, pause * 2
    raise TimeoutError(f"no agent answered over the serial port {path.name} in {timeout:g} s")


def dial_vsock(path: Path, timeout: float, port: int = VSOCK_PORT) -> socket.socket:
    """A connection to vsock `port` of a guest through Firecracker's unix socket `path` (its "hybrid vsock").

    `timeout` in seconds. Raises `ConnectionRefusedError` where nobody listens on the port (yet), `TimeoutError`, `OSError`.
    """
    connection = connect(path, timeout)
    try:
        connection.sendall(f"CONNECT {port}\n".encode())
        answer = b""
        while not answer.endswith(b"\n") and len(answer) < _LONGEST_ANSWER:
            byte = connection.recv(1)
            if not byte:
                raise ConnectionRefusedError(f"nobody listens on the guest's vsock port {port}")
            answer += byte
        if not answer.startswith(b"OK "):
            raise ProtocolError(f"the monitor answered CONNECT with {answer!r}.")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def configure_guest(connection: socket.socket, spec: MachineSpec, timeout: float) -> None:
    """Tells a guest's agent the time, and the defaults of its image and sandbox, over a fresh `connection`, which is closed.

    `timeout` in seconds. Raises `InfrastructureError` when the agent does not do it.
    """
    root, env = spec.root, {**spec.root.env, **spec.env}
    call(connection, "configure", timeout=timeout, env=env, user=root.user, cwd=root.cwd, realtime_ns=time.time_ns())


def _greeted(connection: socket.socket, patience: float) -> bool:
    decoder, deadline = Decoder(), time.monotonic() + patience
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            count = connection.recv_into(decoder.buffer())
            if count == 0:
                raise InfrastructureError("the machine closed the agent's port: it has ended.")
            frames = decoder.received(count)
        except (TimeoutError, ProtocolError):
            return False
        if frames:
            stream, kind, body = frames[0]
            return stream == 0 and kind is Kind.EVENT and isinstance(body, dict) and body.get("event") == "hello"
    return False


def connect(path: Path, timeout: float) -> socket.socket:
    """A connection to the unix socket `path`, however long that is; `timeout` in seconds stays in force. Raises `OSError`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        with _address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """A form of `path` that fits into a sockaddr_un: through a descriptor of its directory where it is too long itself."""
    if len(os.fsencode(path)) <= _PATH_MAX:
        yield os.fspath(path)
        return
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
