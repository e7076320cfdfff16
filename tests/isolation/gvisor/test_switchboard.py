"""Many connections on one stream of a real agent: each sees an agent of its own, and a break of one is nothing to the others."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.native.client import OPEN, AgentError, Client, ConnectionClosed

from agentenv.guest.native import binary
from agentenv.isolation.gvisor.switchboard import Line, Switchboard
from agentenv.isolation.gvisor.trunk import Trunk
from agentenv.isolation.namespace import endpoint


class Exchange:
    """An agent whose only stream is its standard input, behind a switchboard."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        near, far = socket.socketpair()
        self.agent = subprocess.Popen([binary("agentenv-agent"), "--stream", "0"], stdin=far)
        self.board = Switchboard.open()
        self.line = Line(Trunk(near, far), endpoint.listen(directory))
        self.board.attach(self.line).result(10)

    def connect(self) -> Client:
        return Client(endpoint.connect(self.directory))

    def close(self) -> None:
        self.board.detach(self.line).result(10)
        self.board.close()
        self.agent.wait(10)


@pytest.fixture
def exchange(tmp_path: Path) -> Iterator[Exchange]:
    exchange = Exchange(tmp_path)
    yield exchange
    exchange.close()


def test_each_connection_is_greeted_and_answered(exchange: Exchange) -> None:
    clients = [exchange.connect() for _ in range(20)]
    for number, client in enumerate(clients):
        assert client.event(0)["event"] == "hello"
        assert client.call("ping", payload=str(number).encode()).result == {"payload": str(number).encode()}


def test_answers_find_their_way_from_many_threads(exchange: Exchange) -> None:
    def work(number: int) -> bytes:
        client = exchange.connect()
        parts = [client.call("exec", argv=["/bin/echo", f"{number}.{turn}"]).data for turn in range(5)]
        return b"".join(parts)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [b"".join(b"%d.%d\n" % (n, turn) for turn in range(5)) for n in range(8)]


def test_a_megabyte_flows_both_ways(exchange: Exchange, tmp_path: Path) -> None:
    client, content = exchange.connect(), os.urandom(3_000_000)
    stream = client.open("exec", argv=["/bin/cat"], stdin=True)
    client.upload(stream, content)
    assert client.finish(stream).data == content


def test_who_does_not_read_holds_nobody_else_back(exchange: Exchange) -> None:
    noisy = exchange.connect()
    noisy.open("exec", argv=["/usr/bin/yes"])
    client = exchange.connect()
    assert client.call("ping", payload=b"?").result == {"payload": b"?"}


def test_a_broken_connection_ends_its_processes_and_only_those(exchange: Exchange) -> None:
    staying, leaving = exchange.connect(), exchange.connect()
    pids = [client.event(client.open("exec", argv=["/bin/sleep", "1000"]))["pid"] for client in (staying, leaving)]
    descriptors = [os.pidfd_open(pid) for pid in pids]
    leaving.socket.close()
    assert select.select([descriptors[1]], [], [], 30)[0]
    assert not select.select([descriptors[0]], [], [], 0)[0]
    for descriptor in descriptors:
        os.close(descriptor)


def test_output_of_who_has_left_is_swallowed(exchange: Exchange) -> None:
    leaving = exchange.connect()
    leaving.open("exec", argv=["/usr/bin/yes"])
    leaving.socket.close()
    client = exchange.connect()
    while client.call("processes").result["processes"]:
        continue
    assert client.call("ping", payload=b"!").result == {"payload": b"!"}


def test_descriptors_are_refused_and_the_agent_lives_on(exchange: Exchange) -> None:
    client = exchange.connect()
    with pytest.raises(AgentError, match="EOPNOTSUPP"):
        client.call("dial", port=1, pass_fd=True)
    assert client.call("ping", payload=b"?").result == {"payload": b"?"}


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc0"], ids=["too long", "no frame"])
def test_what_breaks_the_protocol_ends_that_connection(exchange: Exchange, data: bytes) -> None:
    bad, good = exchange.connect(), exchange.connect()
    bad.socket.sendall(data)
    with pytest.raises(ConnectionClosed):
        bad.receive(7)
    assert good.call("ping", payload=b"?").result == {"payload": b"?"}


def test_a_stream_cannot_be_opened_twice(exchange: Exchange) -> None:
    client = exchange.connect()
    for _ in range(2):
        client.send(5, OPEN, {"op": "exec", "argv": ["/bin/cat"], "stdin": True})
    client.answers_until_closed()
    assert exchange.connect().call("ping", payload=b"?").result == {"payload": b"?"}


def test_the_agents_end_ends_every_connection(exchange: Exchange) -> None:
    client = exchange.connect()
    client.event(0)
    exchange.agent.kill()
    exchange.line.trunk._far.close()  # a sandbox's end is seen by its process; here by the end of the stream
    with pytest.raises(ConnectionClosed):
        client.receive(7)


def test_a_detached_line_refuses_connections(exchange: Exchange) -> None:
    client = exchange.connect()
    exchange.board.detach(exchange.line).result(10)
    with pytest.raises(ConnectionClosed):
        client.receive(7)
    with pytest.raises(ConnectionRefusedError):
        exchange.connect()
    assert exchange.agent.wait(10) == 0
