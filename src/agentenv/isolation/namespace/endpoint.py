"""The unix socket through which a machine's agent is reached, and the bounded file that its error output goes to."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOCKET_NAME = "agent.sock"
_PATH_MAX = 107  # sockaddr_un, without its final NUL
_BACKLOG = 1024
_LOG_BYTES = 65536


@contextmanager
def _address(directory: Path) -> Iterator[str]:
    """A path of the socket that fits into a sockaddr_un: through a descriptor of its directory where the real one is too long."""
    path = f"{directory}/{SOCKET_NAME}"
    if len(os.fsencode(path)) <= _PATH_MAX:
        yield path
        return
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


def listen(directory: Path) -> socket.socket:
    """A listening socket `agent.sock` in the directory, for its owner alone."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # before bind: the file is born with this mode
        with _address(directory) as address:
            listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(directory: Path) -> socket.socket:
    """A blocking connection to it. Raises `ConnectionRefusedError` when the agent is gone, `FileNotFoundError` when there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(directory) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def open_log() -> int:
    """A descriptor of an anonymous file that holds 64 KiB and refuses more."""
    descriptor = os.memfd_create("agentenv-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, _LOG_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return descriptor


def read_log(descriptor: int) -> str:
    """What was printed so far."""
    if os.fstat(descriptor).st_blocks == 0:
        return ""  # the usual case, without looking through 64 KiB of zeros
    return os.pread(descriptor, _LOG_BYTES, 0).rstrip(b"\0").decode(errors="replace")
