"""Checks of how a sandbox's ports are reached from outside."""

from __future__ import annotations

import asyncio
import hashlib
import os
import select
import socket

from agentenv.conformance.resident import start_resident
from agentenv.conformance.subject import Subject
from agentenv.isolation.conformance import check, expect_equal, expect_refusal
from agentenv.sandbox import AsyncSandbox

_ECHO = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0)) if sys.argv[1] == "port" else socket.socket(socket.AF_UNIX)
if sys.argv[1] != "port":
    server.bind(sys.argv[1])
    server.listen()
print(server.getsockname()[1] if sys.argv[1] == "port" else "ready", flush=True)
while True:
    connection, _ = server.accept()
    while piece := connection.recv(65536):
        connection.sendall(piece)
    connection.close()
"""


@check("ports.dial")
async def dial(subject: Subject) -> None:
    """A port of the sandbox and a unix socket in it are dialled as plain sockets, and megabytes come back through them whole."""
    sandbox = await subject.sandbox()
    await subject.require(sandbox, "python3")
    await sandbox.files.remove("/tmp/echo.sock", missing_ok=True)
    for where in ("port", "/tmp/echo.sock"):
        told = await _start(sandbox, where)
        connection = await sandbox.dial(int(told) if where == "port" else where)
        content = os.urandom(3_000_000)
        echoed = await asyncio.to_thread(_echoed, connection, content)
        expect_equal(f"the digest of what came back through {where}", hashlib.sha256(echoed).digest(), hashlib.sha256(content).digest())


@check("ports.nobody")
async def nobody(subject: Subject) -> None:
    """Where nobody listens a dial is refused as a local connect would be."""
    sandbox = await subject.sandbox()
    with expect_refusal("a port at which nobody listens", ConnectionRefusedError):
        (await sandbox.dial(1)).close()
    with expect_refusal("a unix socket that does not exist", FileNotFoundError):
        (await sandbox.dial("/no/such/socket")).close()


@check("ports.get-host")
async def get_host(subject: Subject) -> None:
    """A port is published on this machine's loopback, for several connections one after the other and at the same time."""
    sandbox = await subject.sandbox()
    await subject.require(sandbox, "python3")
    resident = await start_resident(sandbox)
    host, _, port = (await sandbox.get_host(resident.port)).rpartition(":")
    expect_equal("the host", host, "127.0.0.1")
    values = [await _ask_published(int(port)) for _ in range(3)]
    values += await asyncio.gather(*(_ask_published(int(port)) for _ in range(5)))
    expect_equal("the values after each of eight additions", sorted(values), list(range(1, 9)))


async def _start(sandbox: AsyncSandbox, where: str) -> str:
    handle = await sandbox.commands.run(["python3", "-c", _ECHO, where], background=True)
    async for piece in handle:
        if piece.stdout:
            return piece.stdout.strip()
    return ""


def _echoed(connection: socket.socket, content: bytes) -> bytes:
    """Sends the content and takes what comes back, at the same time, since no end holds it all."""
    received = bytearray()
    with connection:
        connection.setblocking(False)
        sent = 0
        while len(received) < len(content):
            reading, writing = _ready(connection, sent < len(content))
            if writing:
                sent += connection.send(content[sent : sent + 65536])
            if reading:
                piece = connection.recv(65536)
                if not piece:
                    break
                received += piece
    return bytes(received)


def _ready(connection: socket.socket, wants_to_write: bool) -> tuple[bool, bool]:
    reading, writing, _ = select.select([connection], [connection] if wants_to_write else [], [], 60)
    if not reading and not writing:
        raise TimeoutError("nothing came back for a minute")
    return bool(reading), bool(writing)


async def _ask_published(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"add\n")
        return int((await reader.readline()).split()[0])
    finally:
        writer.close()


CHECKS = (dial, nobody, get_host)
