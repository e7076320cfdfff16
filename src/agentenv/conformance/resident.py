"""A program that lives in a sandbox and holds something in its memory: what a snapshot of memory must keep, and one of files must not.

It counts what it is asked to, in its memory only, and ticks by itself. Asked through a port of the sandbox, with one word a connection.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

from agentenv.isolation.conformance import CheckFailed
from agentenv.sandbox import AsyncSandbox

PROGRAM = """
import socket, threading, time
held = {"value": 0, "ticks": 0}
connections = set()
server = socket.create_server(("127.0.0.1", 0), backlog=64)
print(server.getsockname()[1], flush=True)
def tick():
    while True:
        held["ticks"] += 1
        time.sleep(0.002)
def serve(connection):
    try:
        while word := connection.recv(64).strip():
            if word == b"add":
                held["value"] += 1
            elif word != b"tell":
                held["value"] = int(word)
            connection.sendall(b"%d %d %d\\n" % (held["value"], held["ticks"], len(connections)))
    except OSError:
        pass
    connections.discard(connection)
    connection.close()
threading.Thread(target=tick, daemon=True).start()
while True:
    connection = server.accept()[0]
    connections.add(connection)
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
"""


@dataclass(frozen=True, slots=True)
class Told:
    """What the program holds: the `value` it was given, its own `ticks`, and how many `connections`, that of the question among them."""

    value: int
    ticks: int
    connections: int


@dataclass(frozen=True, slots=True)
class Resident:
    """The program in one sandbox; `pid` and `port` are the same in whatever goes on from that one's memory."""

    pid: int
    port: int

    async def ask(self, sandbox: AsyncSandbox, word: str = "tell") -> Told:
        """Has it `tell`, `add` one, or take a number as its value. Raises as `AsyncSandbox.dial`."""
        connection = await sandbox.dial(self.port)
        try:
            return await asyncio.to_thread(converse, connection, word)
        finally:
            connection.close()

    async def ticks_on(self, sandbox: AsyncSandbox) -> None:
        """Returns when it has gone on ticking."""
        before = (await self.ask(sandbox)).ticks
        while (await self.ask(sandbox)).ticks <= before:
            continue


def converse(connection: socket.socket, word: str) -> Told:
    """One question and its answer on an open connection."""
    connection.settimeout(60)
    connection.sendall(f"{word}\n".encode())
    answer = connection.recv(256).split()
    if len(answer) != 3:
        raise CheckFailed(f"the program in the sandbox answered {answer!r}.")
    return Told(*map(int, answer))


async def start_resident(sandbox: AsyncSandbox) -> Resident:
    """Starts it in the background. The image must have python3."""
    handle = await sandbox.commands.run(["python3", "-c", PROGRAM], background=True)
    async for piece in handle:
        if piece.stdout:
            return Resident(handle.pid, int(piece.stdout))
    raise CheckFailed(f"python3 in the sandbox ended with {await handle.wait()}.")
