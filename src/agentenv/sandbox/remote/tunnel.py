"""A byte stream through a server to the agent of one of its sandboxes.

An HTTP request asks to switch protocols (RFC 9110, section 7.8); once the server has agreed, the connection carries the agent's frames
and nothing else.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from http import HTTPStatus

from agentenv.errors import InfrastructureError, NotFound, SandboxDied, Unauthenticated
from agentenv.sandbox.remote.address import ServerAddress
from agentenv.sandbox.remote.wire import PREFIX, UPGRADE

_LONGEST_HEAD = 16 << 10
_CHUNK = 64 << 10
_END_OF_HEAD = b"\r\n\r\n"


def open_tunnel(address: ServerAddress, sandbox: str, timeout: float = 30.0) -> socket.socket:
    """A connected, blocking stream to the agent. `timeout` in seconds, until the server has agreed; a paused sandbox is resumed for it.

    Raises `NotFound`, `Unauthenticated`, `SandboxDied`, `InfrastructureError`.
    """
    try:
        stream = _connect(address, timeout)
    except OSError as error:
        raise InfrastructureError(f"the server {address.url} cannot be reached: {error}.") from error
    try:
        stream.sendall(_request(address, sandbox))
        _check(_answer(stream), sandbox)
        stream.settimeout(None)
    except OSError as error:
        stream.close()
        raise InfrastructureError(f"the server {address.url} broke off the way to sandbox {sandbox}: {error}.") from error
    except BaseException:
        stream.close()
        raise
    return _plain(stream) if isinstance(stream, ssl.SSLSocket) else stream


def _connect(address: ServerAddress, timeout: float) -> socket.socket:
    stream = socket.create_connection((address.host, address.port), timeout)
    try:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.secure:
            return ssl.create_default_context().wrap_socket(stream, server_hostname=address.host)
    except BaseException:
        stream.close()
        raise
    return stream


def _request(address: ServerAddress, sandbox: str) -> bytes:
    return (
        f"GET {address.path}{PREFIX}/sandboxes/{sandbox}/agent HTTP/1.1\r\n"
        f"Host: {address.host}:{address.port}\r\n"
        f"X-API-Key: {address.api_key}\r\n"
        f"Connection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n"
    ).encode()


def _answer(stream: socket.socket) -> bytes:
    """The head of the server's answer. It is read to its last byte and no further: what follows is the agent's."""
    head = b""
    while not head.endswith(_END_OF_HEAD):
        piece = stream.recv(_head_left(stream, head))
        if not piece or len(head) > _LONGEST_HEAD:
            raise OSError("its answer is no HTTP")
        head += piece
    return head


def _head_left(stream: socket.socket, head: bytes) -> int:
    """How many bytes that have come belong to the head, of which `head` was read; under TLS, where nobody can look ahead, one by one."""
    if isinstance(stream, ssl.SSLSocket):
        return 1
    seen = stream.recv(_LONGEST_HEAD, socket.MSG_PEEK)
    end = (head + seen).find(_END_OF_HEAD)
    return len(seen) or 1 if end < 0 else end + len(_END_OF_HEAD) - len(head)


def _check(head: bytes, sandbox: str) -> None:
    status = head.split(b" ", 2)[1:2]
    code = int(status[0]) if status and status[0].isdigit() else 0
    if code == HTTPStatus.SWITCHING_PROTOCOLS:
        return
    if code == HTTPStatus.NOT_FOUND:
        raise NotFound(f"there is no sandbox {sandbox!r} on the server.")
    if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise Unauthenticated("the server does not accept the API key.", remedy="Set AGENTENV_API_KEY to one of its keys.")
    if code in (HTTPStatus.GONE, HTTPStatus.CONFLICT, HTTPStatus.BAD_GATEWAY):
        raise SandboxDied(sandbox, f"its server answered {code}")
    raise InfrastructureError(f"the server refused the way to sandbox {sandbox}: {head.splitlines()[0].decode(errors='replace')}.")


def _plain(secure: ssl.SSLSocket) -> socket.socket:
    """A plain socket whose bytes travel encrypted: TLS keeps bytes of its own, which an event loop that watches its socket does not see."""
    near, far = socket.socketpair()
    secure.setblocking(False)
    far.setblocking(False)
    threading.Thread(target=_move, args=(secure, far), name="agentenv-tls", daemon=True).start()
    return near


def _move(secure: ssl.SSLSocket, local: socket.socket) -> None:
    """Moves bytes both ways until one side ends; what the server had sent by then still arrives."""
    towards_local, towards_server = bytearray(), bytearray()
    poll = select.poll()
    with secure, local, contextlib.suppress(OSError):
        while _exchange(local, towards_server, towards_local):
            if not _exchange(secure, towards_local, towards_server):
                local.setblocking(True)
                local.sendall(towards_local)
                return
            if not secure.pending():
                poll.register(secure, _wanted(towards_local, towards_server))
                poll.register(local, _wanted(towards_server, towards_local))
                poll.poll()


def _exchange(side: socket.socket, read_into: bytearray, write_from: bytearray) -> bool:
    """Moves what can be moved now between one side and the two buffers; False when the side has ended."""
    with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        while write_from:
            del write_from[: side.send(write_from)]
    with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        if len(read_into) < _CHUNK:
            data = side.recv(_CHUNK)
            read_into += data
            return bool(data)
    return True


def _wanted(read_into: bytearray, write_from: bytearray) -> int:
    return (select.POLLIN if len(read_into) < _CHUNK else 0) | (select.POLLOUT if write_from else 0)
