"""A world for sandboxes with networks: a machine with nothing but an uplink, and behind that an internet of five addresses.

None of it is this machine's: the lab's host is a network namespace in which a node and its sandboxes run, its internet another.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agentenv.conformance import world
from agentenv.conformance.aside import NETWORK, aside
from agentenv.conformance.subject import Subject
from agentenv.egress.rules import INTERFACE_PREFIX
from agentenv.isolation.conformance import CheckFailed
from agentenv.node import Node
from agentenv.node.network_host import state_directory
from agentenv.sandbox import AsyncCommandHandle, AsyncSandbox

HOST = "192.0.2.2"
ALLOWED, OTHER = "203.0.113.5", "203.0.113.6"
"""Two public addresses; which one is allowed is for a check to say."""

PRIVATE, SHARED, METADATA = "10.9.9.9", "100.64.9.9", "169.254.169.254"
"""Off the public internet: of a private range, of carriers' shared space (RFC 6598), the clouds' metadata service."""

_TRY = f"""
import json, socket, sys, threading
wanted = json.loads(sys.argv[1])
answers = dict()
def ask(address):
    try:
        with socket.create_connection((address, {world.PORT}), 3) as connection:
            connection.settimeout(3)
            answers[address] = connection.recv(100).decode().strip()
    except OSError:
        answers[address] = ""
threads = [threading.Thread(target=ask, args=(address,)) for address in wanted]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps([address for address in wanted if answers[address] == address]))
"""
"""Asks all at the same time: some refusals are a silence."""

_HOLD = f"""
import socket, sys
connection = socket.create_connection((sys.argv[1], {world.PORT}), 10)
connection.recv(100)
print("open", flush=True)
connection.settimeout(5)
for line in sys.stdin:
    try:
        connection.sendall(line.encode())
        outcome = "answered" if connection.recv(100) else "ended"
    except TimeoutError:
        outcome = "silent"
    except OSError:
        outcome = "ended"
    print(line.strip(), outcome, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Lab:
    """Handed to what happens in it: `subject` is a node on the lab's host with the backend that is tried."""

    subject: Subject

    async def reached(self, sandbox: AsyncSandbox, addresses: Sequence[str]) -> list[str]:
        """Which of the addresses answer as themselves to a program in the sandbox."""
        told = await sandbox.commands.run(["python3", "-c", _TRY, json.dumps(addresses)], check=True, timeout=120)
        found: list[str] = json.loads(told.stdout)
        return found

    async def reached_by_host(self, addresses: Sequence[str]) -> list[str]:
        """Which of them answer to a program on the lab's host, where no rule is in its way."""
        program = await asyncio.create_subprocess_exec(sys.executable, "-c", _TRY, json.dumps(addresses), stdout=subprocess.PIPE)
        output, _ = await program.communicate()
        found: list[str] = json.loads(output)
        return found

    async def serve_in(self, sandbox: AsyncSandbox) -> str:
        """Has a server in the sandbox listen on all its addresses; returns the one that others would reach, were they let."""
        source = await asyncio.to_thread(Path(world.__file__).read_text)
        handle = await sandbox.commands.run(["python3", "-c", source], background=True, stdin=True)
        await said(handle, "up")
        told = await sandbox.commands.run(["python3", "-c", _OWN_ADDRESS], check=True)
        return told.stdout.strip()

    async def links(self) -> list[tuple[str, str]]:
        """Both ends of each sandbox's link: the host's, and the one at which others would reach the sandbox, whatever it calls itself."""
        tool = await asyncio.create_subprocess_exec("ip", "-j", "-4", "address", stdout=subprocess.PIPE)
        output, _ = await tool.communicate()
        found = [link for link in json.loads(output) if link["ifname"].startswith(INTERFACE_PREFIX)]
        ends = [ipaddress.IPv4Address(address["local"]) for link in found for address in link["addr_info"]]
        return [(str(end), str(end + 1)) for end in ends]


# No packet is sent: this only has the kernel choose the address that it would send from.
_OWN_ADDRESS = (
    "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('203.0.113.5', 53)); print(s.getsockname()[0])"
)


class Held:
    """A connection to the world that a program in a sandbox keeps open."""

    def __init__(self, handle: AsyncCommandHandle) -> None:
        self._handle = handle

    @classmethod
    async def open(cls, sandbox: AsyncSandbox, address: str) -> Held:
        """Connects. Raises `CheckFailed` where that fails."""
        handle = await sandbox.commands.run(["python3", "-c", _HOLD, address], background=True, stdin=True)
        await said(handle, "open")
        return cls(handle)

    async def in_child(self, child: AsyncSandbox) -> Held:
        """The same program where it goes on from the sandbox's memory."""
        return Held(await child.commands.connect(self._handle.pid))

    async def ask(self) -> str:
        """What becomes of a line that the program sends: "answered", "ended" where the connection has, "silent" where nothing comes."""
        line = secrets.token_hex(4)
        await self._handle.send_stdin(f"{line}\n")
        return await said(self._handle, line)


async def said(handle: AsyncCommandHandle, word: str) -> str:
    """What the command prints behind `word` on the line that begins with it. Raises `CheckFailed` when it ends without one."""
    printed = ""
    async for piece in handle:
        printed += piece.stdout or ""
        if found := re.search(rf"^{word}(.*)\n", printed, re.MULTILINE):
            return found[1].strip()
    ended = await handle.wait()
    raise CheckFailed(f"a program in the sandbox ended with {ended.exit_code} before it printed {word!r}: {ended.stderr[-300:]}")


async def in_lab(subject: Subject, scenario: Callable[[Lab], Awaitable[None]]) -> None:
    """Runs the scenario in a lab of its own, with a node in the subject's home; ends all that it made.

    Raises what it raises, and `NotApplicable` where no lab can be made.
    """

    async def work() -> None:
        async with _world(), await Node.open(subject.node.home) as node:
            inside = Subject(subject.yard, node, subject.image)
            try:
                await scenario(Lab(inside))
            finally:
                await inside.close()

    await aside(NETWORK, work)


@asynccontextmanager
async def _world() -> AsyncIterator[None]:
    """Servers on the lab's host and in its internet, with the link between them."""
    async with AsyncExitStack() as stack:
        stack.callback(_forget, state_directory())
        internet = await _serve(stack, "unshare", "--net")
        await _wire(f"/proc/{internet}/ns/net", internet)
        await _serve(stack)
        yield


async def _serve(stack: AsyncExitStack, *before: str) -> int:
    server = await asyncio.create_subprocess_exec(*before, sys.executable, world.__file__, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stack.push_async_callback(_end, server)
    assert server.stdout is not None
    if await server.stdout.readline() != b"up\n":
        raise CheckFailed("no server for the lab could be started; what it said is above.")
    return server.pid


async def _end(server: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        server.kill()
    await server.communicate()


async def _wire(internet: str, pid: int) -> None:
    host = ["link set lo up", f"link add wan type veth peer name eth0 netns {pid}", f"addr add {HOST}/24 dev wan", "link set wan up"]
    beyond = ["link set lo up", "link set eth0 up", "addr add 192.0.2.1/24 dev eth0"]
    beyond += [f"addr add {address}/32 dev lo" for address in (ALLOWED, OTHER, PRIVATE, SHARED, METADATA)]
    for before, lines in (([], host), (["nsenter", f"--net={internet}"], beyond), ([], ["route add default via 192.0.2.1"])):
        tool = await asyncio.create_subprocess_exec(*before, "ip", "-batch", "-", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        _, complaint = await tool.communicate("\n".join(lines).encode())
        if tool.returncode:
            raise CheckFailed(f"the lab's network cannot be made: {complaint.decode().strip()}")


def _forget(state: Path) -> None:
    """Removes what nodes have written down about the lab's network, which is about to go."""
    for path in sorted(state.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with suppress(FileNotFoundError):
        state.rmdir()
