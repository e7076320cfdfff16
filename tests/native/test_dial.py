"""Connections to servers inside."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.client import CANCEL, DATA, END, AgentError, Client


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)
        yield listening


def accept(server: socket.socket) -> socket.socket:
    connection, _ = server.accept()
    connection.settimeout(20)
    return connection


def test_both_ways_and_half_close(client: Client, server: socket.socket) -> None:
    stream = client.open("dial", port=server.getsockname()[1])
    client.send(stream, DATA, b"early")  # before it is connected
    assert client.event(stream) == {"event": "connected"}
    with accept(server) as peer:
        assert peer.recv(5, socket.MSG_WAITALL) == b"early"
        client.send(stream, END)
        assert peer.recv(1) == b""
        peer.sendall(b"still answering")
        peer.shutdown(socket.SHUT_WR)
        outcome = client.finish(stream)
    assert outcome.data == b"still answering"
    assert outcome.result == {}


def test_the_far_side_closes_first(client: Client, server: socket.socket) -> None:
    stream = client.open("dial", port=server.getsockname()[1])
    client.event(stream)
    with accept(server) as peer:
        peer.sendall(b"bye")
        peer.shutdown(socket.SHUT_WR)
        assert client.receive(stream) == (DATA, b"bye")
        assert client.receive(stream) == (END, None)
        client.send(stream, DATA, b"one more thing")
        client.send(stream, END)
        assert peer.recv(100, socket.MSG_WAITALL) == b"one more thing"
    assert client.finish(stream).result == {}


def test_much_data_in_both_directions(client: Client, server: socket.socket) -> None:
    stream = client.open("dial", port=server.getsockname()[1])
    client.event(stream)
    content = os.urandom(3_000_000)

    def echo() -> None:
        with accept(server) as peer:
            while chunk := peer.recv(65_536):
                peer.sendall(chunk)

    echoing = threading.Thread(target=echo)
    echoing.start()
    client.upload(stream, content)
    assert client.finish(stream).data == content
    echoing.join()


def test_ipv6_when_ipv4_refuses(client: Client) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 loopback on this machine")
    with listening:
        stream = client.open("dial", port=listening.getsockname()[1])
        assert client.event(stream) == {"event": "connected"}


@pytest.mark.parametrize("kind", ["short", "long", "abstract"])
def test_unix_sockets(client: Client, tmp_path: Path, kind: str) -> None:
    directory = tmp_path / ("d" * 100 if kind == "long" else "d")
    directory.mkdir()
    name = f"@agentenv-test-{os.getpid()}" if kind == "abstract" else str(directory / "socket")
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "abstract":
            listening.bind("\0" + name[1:])
        else:
            fd = os.open(directory, os.O_PATH)
            listening.bind(f"/proc/self/fd/{fd}/socket")
            os.close(fd)
        listening.listen()
        stream = client.open("dial", path=name)
        assert client.event(stream) == {"event": "connected"}
        with accept(listening) as peer:
            peer.sendall(b"hello")
        assert client.receive(stream) == (DATA, b"hello")
        client.send(stream, CANCEL)
        with pytest.raises(AgentError, match="ECANCELED"):
            client.finish(stream)


def test_a_full_backlog_is_waited_for(client: Client, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen(0)
        first = client.open("dial", path=str(tmp_path / "socket"))
        client.event(first)
        second = client.open("dial", path=str(tmp_path / "socket"))
        client.call("ping")
        with accept(listening):
            assert client.event(second) == {"event": "connected"}


def test_pass_fd(client: Client, server: socket.socket) -> None:
    stream = client.open("dial", port=server.getsockname()[1], pass_fd=True)
    assert client.event(stream) == {"event": "connected"}
    (descriptor,) = client.descriptors
    client.descriptors.clear()
    with accept(server) as peer, socket.socket(fileno=descriptor) as direct:
        assert os.get_blocking(direct.fileno())
        direct.sendall(b"no hop")
        assert peer.recv(6, socket.MSG_WAITALL) == b"no hop"
    assert client.call("ping", payload=b"x").result == {"payload": b"x"}


def test_descriptors_arrive_with_their_frames(client: Client, server: socket.socket) -> None:
    """Many at once, among other output: each connected event carries exactly one descriptor, in order."""
    noise = client.open("exec", argv=["seq", "200000"])
    streams = [client.open("dial", port=server.getsockname()[1], pass_fd=True) for _ in range(50)]
    for stream in streams:
        assert client.event(stream) == {"event": "connected"}
    client.finish(noise)
    assert len(client.descriptors) == 50
    peers = [accept(server) for _ in streams]
    by_port = {peer.getpeername()[1]: peer for peer in peers}
    ports = []
    for descriptor in client.descriptors:
        with socket.socket(fileno=os.dup(descriptor)) as direct:
            ports.append(direct.getsockname()[1])
    assert set(ports) == set(by_port)
    for peer in peers:
        peer.close()


def test_faults(client: Client, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        cases: list[tuple[dict[str, object], str]] = [
            ({"port": port}, "ECONNREFUSED"),
            ({"path": str(tmp_path / "missing")}, "ENOENT"),
            ({"path": "@" + "x" * 200}, "ENAMETOOLONG"),
            ({"path": "@agentenv-nobody"}, "ECONNREFUSED"),
            ({"port": 0}, "EPROTO"),
            ({"port": 70_000}, "EPROTO"),
            ({}, "EPROTO"),
            ({"port": 1, "path": "/x"}, "EPROTO"),
        ]
        for parameters, code in cases:
            with pytest.raises(AgentError) as caught:
                client.call("dial", **parameters)
            assert caught.value.code == code, parameters
