"""Speaks to the kernel of one sandbox over its control socket, which spares the 20 ms that each call of the command `runsc` takes.

A request is `{"method": …, "arg": …}` and an answer `{"success": …, "err": …}`, both JSON (gVisor, pkg/urpc).
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import msgspec

from agentenv.errors import InfrastructureError

_PATH_MAX = 107
_ANSWER_MAX = 65536


class _Sandbox(msgspec.Struct, rename="camel"):
    pid: int
    control_socket_path: str = ""


class Known(msgspec.Struct, rename="camel"):
    """What runsc has written down of a machine (its `*.state` file), as far as it concerns us."""

    sandbox: _Sandbox
    gofer_pid: int = 0


def known(state: Path) -> Known:
    """Raises `InfrastructureError` when the directory `state` does not tell of a machine."""
    try:
        (file,) = state.glob("*.state")
        return msgspec.json.decode(file.read_bytes(), type=Known)
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"runsc has left no description of its sandbox in {state}: {error}.") from error


def ask(control_socket: str, method: str, *, timeout: float) -> None:
    """Has the kernel do `method`, and returns when it is done. `timeout` in seconds. Raises `InfrastructureError`."""
    try:
        with _connect(control_socket, timeout) as connection:
            connection.sendall(json.dumps({"method": f"containerManager.{method}", "arg": None}).encode())
            answer = json.loads(_receive(connection))
    except TimeoutError as error:
        raise InfrastructureError(f"gVisor's kernel has not answered {method} after {timeout:g} s.") from error
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"gVisor's kernel cannot be asked to {method.lower()}: {error}.") from error
    if not answer.get("success"):
        raise InfrastructureError(f"gVisor's kernel refused to {method.lower()}: {answer.get('err')}.")


def _connect(path: str, timeout: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout)
    try:
        if len(os.fsencode(path)) <= _PATH_MAX:
            connection.connect(path)
        else:
            directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # noqa: PTH120
            try:
                connection.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")  # noqa: PTH119
            finally:
                os.close(directory)
    except BaseException:
        connection.close()
        raise
    return connection


def _receive(connection: socket.socket) -> str:
    """One JSON value; it is complete when it can be read."""
    text = ""
    while data := connection.recv(_ANSWER_MAX):
        text += data.decode()
        try:
            json.loads(text)
        except ValueError:
            continue
        return text
    raise ValueError("it closed the connection")
