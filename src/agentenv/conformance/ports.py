"""Checks of how a sandbox's ports are reached from outside, and of the network that it has or has not."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import select
import socket
import subprocess

from agentenv.conformance.resident import start_resident
from agentenv.conformance.subject import Subject
from agentenv.errors import CapabilityError
from agentenv.isolation.conformance import check, expect, expect_equal, expect_refusal
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

_TRY = """
import json, socket, sys
reached = []
for host, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((host, port), 3).close()
        reached.append([host, port])
    except OSError:
        pass
print(json.dumps(reached))
"""

_NEVER = (("169.254.169.254", 80), ("10.0.0.1", 80), ("172.16.0.1", 80), ("192.168.0.1", 80), ("100.64.0.1", 80))
"""The cloud's metadata service, and an address out of each private range."""


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


@check("network.none")
async def none(subject: Subject) -> None:
    """Without a network a sandbox has a loopback of its own, and reaches neither this machine nor anything beyond."""
    sandbox = await subject.sandbox()
    await subject.require(sandbox, "python3")
    names = await sandbox.commands.run("cut -d: -f1 /proc/net/dev | tail -n +3", check=True)
    expect(set(names.stdout.split()) <= {"lo"}, f"it has the interfaces {names.stdout.split()}.")
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        wanted = [*((address, port) for address in _own_addresses()), ("1.1.1.1", 53), *_NEVER]
        expect_equal("what it reaches", await _reached(sandbox, wanted), [])
    resident = await start_resident(sandbox)
    expect_equal("what it reaches of itself", await _reached(sandbox, [("127.0.0.1", resident.port)]), [["127.0.0.1", resident.port]])


@check("network.private", needs=("network",))
async def private(subject: Subject) -> None:
    """With a network a sandbox has an interface and a way out, and still reaches neither this machine nor any private range."""
    sandbox = await subject.create(network=True)
    await subject.require(sandbox, "python3")
    names = await sandbox.commands.run("cut -d: -f1 /proc/net/dev | tail -n +3", check=True)
    expect(set(names.stdout.split()) - {"lo"}, "it has no interface but its loopback.")
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        addresses = [address for address in _own_addresses() if address != "127.0.0.1"]
        expect_equal("what it reaches", await _reached(sandbox, [*((address, port) for address in addresses), *_NEVER]), [])


@check("network.between", needs=("network",))
async def between(subject: Subject) -> None:
    """Two sandboxes with networks do not reach each other."""
    first, second = await subject.create(network=True), await subject.create(network=True)
    await subject.require(first, "python3")
    found = await first.commands.run(["python3", "-c", _OWN_ADDRESS])
    address = found.stdout.strip()
    expect(address, f"it has no address: {found.stderr.strip()[-200:]}")
    handle = await first.commands.run(
        ["python3", "-c", "import socket; s = socket.create_server(('', 7000)); print('on', flush=True); s.accept()"], background=True
    )
    async for _ in handle:
        break
    expect_equal("what the second reaches of the first", await _reached(second, [(address, 7000)]), [])


@check("network.unclaimed", unless=("network",))
async def unclaimed(subject: Subject) -> None:
    """A network that the backend does not claim is refused, before anything is started."""
    with expect_refusal("a network", CapabilityError):
        await subject.create(network=True)


# No packet is sent: this only has the kernel choose the address that it would send from.
_OWN_ADDRESS = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('1.1.1.1', 53)); print(s.getsockname()[0])"


async def _start(sandbox: AsyncSandbox, where: str) -> str:
    handle = await sandbox.commands.run(["python3", "-c", _ECHO, where], background=True)
    async for piece in handle:
        if piece.stdout:
            return piece.stdout.strip()
    return ""


async def _reached(sandbox: AsyncSandbox, wanted: list[tuple[str, int]]) -> list[list[object]]:
    told = await sandbox.commands.run(["python3", "-c", _TRY, json.dumps(wanted)], check=True)
    found: list[list[object]] = json.loads(told.stdout)
    return found


def _own_addresses() -> list[str]:
    """Every IPv4 address of this machine, those of its links to sandboxes included."""
    listed = subprocess.run(["ip", "-j", "-4", "address"], capture_output=True, text=True, check=True).stdout
    return [one["local"] for link in json.loads(listed) for one in link.get("addr_info", ())]


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


CHECKS = (dial, nobody, get_host, none, private, between, unclaimed)
