"""Connections to a server: as many as there are requests at once, kept for the next ones, and never one that the server has closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agentenv.errors import InfrastructureError
from agentenv.sandbox.remote.address import ServerAddress
from agentenv.sandbox.remote.connections import KEPT, Connections


class Counter:
    """A server that answers each request with its path and body once `open` is set; it counts its connections."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.made = 0
        self.asked = asyncio.Semaphore(0)
        self.last_headers: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        self.writers.append(writer)
        while line := await reader.readline():
            self.last_headers = []
            while (header := await reader.readline()).strip():
                self.last_headers.append(header.decode().strip().lower())
            size = next(int(header.split(":")[1]) for header in self.last_headers if header.startswith("content-length:"))
            body = line.split()[1] + b" " + await reader.readexactly(size)
            self.asked.release()
            await self.open.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
async def connections(counter: Counter) -> AsyncIterator[Connections]:
    server = await asyncio.start_server(counter.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    there = Connections(ServerAddress(f"http://127.0.0.1:{port}/below", "a key"))
    yield there
    await there.close()
    server.close()


async def test_what_is_asked_arrives_and_the_connection_serves_again(counter: Counter, connections: Connections) -> None:
    for number in range(3):
        answer = await connections.ask("POST", "/x", f"body {number}".encode(), {"X-More": "yes"})
        assert (answer.status, answer.body, answer.is_error) == (200, f"/below/x body {number}".encode(), False)
    assert counter.made == 1
    assert {"x-api-key: a key", "x-more: yes"} <= set(counter.last_headers)


async def test_a_request_waits_for_no_other(counter: Counter, connections: Connections) -> None:
    counter.open.clear()
    asking = [asyncio.create_task(connections.ask("GET", f"/{number}", None)) for number in range(2 * KEPT)]
    for _ in asking:
        await counter.asked.acquire()
    counter.open.set()
    assert [(await one).body for one in asking] == [f"/below/{number} ".encode() for number in range(2 * KEPT)]
    assert counter.made == 2 * KEPT
    await asyncio.gather(*(connections.ask("GET", "/again", None) for _ in range(KEPT)))
    assert counter.made == 2 * KEPT


async def test_a_connection_that_the_server_has_closed_is_not_used(counter: Counter, connections: Connections) -> None:
    await connections.ask("GET", "/", None)
    counter.writers[0].close()
    await counter.writers[0].wait_closed()
    assert (await connections.ask("GET", "/", None)).status == 200
    assert counter.made == 2


async def test_a_request_that_is_given_up_spoils_no_other(counter: Counter, connections: Connections) -> None:
    counter.open.clear()
    given_up = asyncio.create_task(connections.ask("GET", "/given-up", None))
    await counter.asked.acquire()
    given_up.cancel()
    await asyncio.wait({given_up})
    counter.open.set()
    assert (await connections.ask("GET", "/other", None)).body == b"/below/other "


async def test_nobody_there_is_a_typed_error(connections: Connections, unused_tcp_port: int) -> None:
    nowhere = Connections(ServerAddress(f"http://127.0.0.1:{unused_tcp_port}", "a key"))
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        await nowhere.ask("GET", "/", None)
