"""Frames: what breaks the protocol ends the connection, whatever comes never ends the agent."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.native.client import CANCEL, CREDIT, DATA, END, EVENT, OPEN, RESULT, WINDOW, AgentError, Client, ConnectionClosed
from tests.native.conftest import Agent, StartAgent


class Listening:
    """An agent behind a listening socket, as it is in a sandbox."""

    def __init__(self, start_agent: StartAgent, directory: Path) -> None:
        self.path = str(directory / "agent.sock")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(self.path)
            server.listen(128)
            self.agent = start_agent("--listen", str(server.fileno()), descriptors=(server.fileno(),))

    def connect(self) -> Client:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.path)
        return Client(sock)

    def is_well(self) -> None:
        assert self.agent.client.call("ping", payload=b"?").result == {"payload": b"?"}


@pytest.fixture
def listening(start_agent: StartAgent, tmp_path: Path) -> Listening:
    return Listening(start_agent, tmp_path)


def raw_frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def encoded(*items: object) -> bytes:
    return raw_frame(msgspec.msgpack.encode(list(items)))


MALFORMED = {
    "too long": struct.pack(">I", 1_048_577),
    "empty": struct.pack(">I", 0),
    "no array": raw_frame(msgspec.msgpack.encode({"op": "ping"})),
    "two items": encoded(1, OPEN),
    "four items": encoded(1, OPEN, {}, None),
    "cut short": raw_frame(b"\x93\x01"),
    "rest": raw_frame(b"\x93\x01\x00\x80\x00"),
    "reserved byte": raw_frame(b"\x93\x01\x00\xc1"),
    "unknown kind": encoded(1, 10, None),
    "kind of the agent": encoded(1, RESULT, {}),
    "negative stream": encoded(-1, OPEN, {"op": "ping"}),
    "stream too large": encoded(1 << 32, OPEN, {"op": "ping"}),
    "stream zero": encoded(0, OPEN, {"op": "ping"}),
    "body no map": encoded(1, OPEN, [1]),
    "nested without end": raw_frame(b"\x91" * 1_000_000),
    "more than there is": raw_frame(b"\x93\x01\x00\xdf\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_broken_protocol_closes_the_connection(listening: Listening, name: str) -> None:
    client = listening.connect()
    client.socket.sendall(MALFORMED[name])
    client.answers_until_closed()
    client.close()
    listening.is_well()


def test_more_than_the_credit_closes_the_connection(listening: Listening) -> None:
    client = listening.connect()
    stream = client.open("exec", argv=["sleep", "100"], stdin=True)
    pid = client.event(stream)["pid"]
    for _ in range(6):  # 64 KiB are in the pipe, the rest is kept
        client.send(stream, DATA, bytes(65_536))
    client.answers_until_closed()
    client.close()
    listening.is_well()
    deadline = time.monotonic() + 10
    while pid in (left := [entry["pid"] for entry in listening.agent.client.call("processes").result["processes"]]):
        assert time.monotonic() < deadline, left


def test_reusing_an_open_stream_closes_the_connection(listening: Listening) -> None:
    client = listening.connect()
    stream = client.open("exec", argv=["sleep", "100"])
    client.event(stream)
    client.send(stream, OPEN, {"op": "ping"})
    with pytest.raises(ConnectionClosed):
        client.receive(stream)
    client.close()
    listening.is_well()


def test_frames_for_streams_that_have_ended_are_ignored(client: Client) -> None:
    stream = client.open("ping")
    client.finish(stream)
    for kind, body in ((DATA, b"x"), (END, None), (WINDOW, 5), (CANCEL, None)):
        client.send(stream, kind, body)
        client.send(999, kind, body)
    assert client.call("ping", payload=b"x").result == {"payload": b"x"}


def test_unknown_operations_and_missing_names(client: Client) -> None:
    for body, code in (({"op": "fly"}, "ENOSYS"), ({}, "EPROTO"), ({"op": 5}, "EPROTO")):
        client.send(1000, OPEN, body)
        with pytest.raises(AgentError) as caught:
            client.finish(1000)
        assert caught.value.code == code


def test_frames_in_any_pieces(client: Client) -> None:
    bytes_of_frames = b"".join(encoded(100 + i, OPEN, {"op": "ping", "payload": bytes([i]) * i}) for i in range(20))
    for at in range(0, len(bytes_of_frames), 7):
        client.socket.sendall(bytes_of_frames[at : at + 7])
    for i in range(20):
        assert client.finish(100 + i).result == {"payload": bytes([i]) * i}


def test_the_largest_frames(client: Client) -> None:
    payload = os.urandom(1_000_000)
    assert client.call("ping", payload=payload).result == {"payload": payload}
    stream = client.open("exec", argv=["wc", "-c"], stdin=True)
    client.send(stream, DATA, bytes(CREDIT))
    client.send(stream, END)
    assert client.finish(stream).data.strip() == str(CREDIT).encode()


def test_several_connections(listening: Listening) -> None:
    clients = [listening.connect() for _ in range(50)]
    for i, client in enumerate(clients):
        assert client.event(0)["protocol"] == 1
        assert client.run("echo", str(i)).data == f"{i}\n".encode()
    for client in clients:
        client.close()
    listening.is_well()


def test_a_request_sent_before_the_agent_accepts(start_agent: StartAgent, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as early:
        server.bind(str(tmp_path / "agent.sock"))
        server.listen(8)
        early.connect(str(tmp_path / "agent.sock"))
        early.sendall(encoded(1, OPEN, {"op": "ping", "payload": b"early"}))
        start_agent("--listen", str(server.fileno()), descriptors=(server.fileno(),))
        client = Client(early)
        assert client.receive(1) == (RESULT, {"payload": b"early"})


def test_a_broken_connection_takes_its_processes_but_not_the_kept(listening: Listening) -> None:
    client = listening.connect()
    lost = client.open("exec", argv=["sh", "-c", "sleep 100 & wait"])
    kept = client.open("exec", argv=["sh", "-c", "read x; echo $x"], stdin=True, keep=True)
    gone, alive = client.event(lost)["pid"], client.event(kept)["pid"]
    client.close()
    second = listening.connect()
    while gone in (pids := [entry["pid"] for entry in second.call("processes").result["processes"]]):
        pass
    assert pids == [alive]
    stream = second.open("attach", pid=alive)
    second.send(stream, DATA, b"later\n")
    assert second.finish(stream).data == b"later\n"
    second.close()


def test_a_host_that_does_not_read_bounds_the_agent(listening: Listening) -> None:
    client = listening.connect()
    client.socket.setblocking(False)
    sent = 0
    request = encoded(1, OPEN, {"op": "ping", "payload": bytes(100_000)})
    try:
        while sent < 64 << 20:
            sent += client.socket.send(request)
    except BlockingIOError:
        pass
    assert sent < 32 << 20
    listening.is_well()
    client.close()


def test_memory_goes_back_after_work(agent: Agent, agent_binary: Path, tmp_path: Path) -> None:
    if "_native" not in str(agent_binary):
        pytest.skip("the sanitizers keep memory of their own")
    (tmp_path / "large").write_bytes(bytes(20_000_000))
    agent.client.call("read", path=str(tmp_path / "large"))
    streams = [agent.client.open("exec", argv=["seq", "10000"]) for _ in range(100)]
    for stream in streams:
        agent.client.finish(stream)
    agent.client.call("ping")
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    (resident,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")]
    assert resident < 1024


def test_usage_errors(agent_binary: Path) -> None:
    for arguments, word in (
        ([], "--stream or --listen"),
        (["--stream"], "a value"),
        (["--stream", "x"], "a number"),
        (["--stream", "1000"], "an open descriptor"),
        (["--sideways", "1"], "unknown option"),
        (["--env", "novalue"], "NAME=VALUE"),
    ):
        done = subprocess.run([agent_binary, *arguments], capture_output=True, text=True)
        assert done.returncode == 2
        assert word in done.stderr


@pytest.fixture(scope="module")
def durable(agent_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """One agent that all random input goes to; at the end it must still answer and end well."""
    agents: list[Agent] = []

    def start(*options: str, descriptors: tuple[int, ...] = ()) -> Agent:
        agents.append(Agent([str(agent_binary)], list(options), list(descriptors)))
        return agents[-1]

    listening = Listening(start, tmp_path_factory.mktemp("durable"))
    yield listening
    listening.is_well()
    assert listening.agent.end() == 0


def exhaust(client: Client) -> None:
    """Says that no more comes, and reads whatever the agent answers until it closes."""
    try:
        client.socket.shutdown(socket.SHUT_WR)
        while client.socket.recv(1 << 16):
            pass
    except OSError:
        pass  # closed by the agent before: a protocol error
    client.close()


relaxed = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=6), children, max_size=4),
    max_leaves=8,
)
# Nothing in here may change the machine that the test runs on: random paths are relative to a directory that does not exist.
NO_TEXT = VALUES.filter(lambda value: not isinstance(value, str | bytes))
PATHS = st.text(max_size=10).map(lambda name: "/nonexistent-agentenv/" + name) | NO_TEXT
HARMLESS = [
    "ping",
    "stat",
    "read",
    "list",
    "attach",
    "processes",
    "watch",
    "tar_out",
    "dial",
    "stats",
    "rename",
    "symlink",
    "chmod",
    "exec",
]
OPENS = st.fixed_dictionaries(
    {"op": st.sampled_from(HARMLESS)},
    optional={
        "path": PATHS,
        "to": PATHS,
        "target": VALUES,
        "mode": VALUES,
        "depth": VALUES,
        "follow": VALUES,
        "offset": VALUES,
        "length": VALUES,
        "recursive": VALUES,
        "port": VALUES,
        "pid": VALUES,
        "payload": VALUES,
        "argv": st.lists(st.just("/nonexistent-agentenv/program") | NO_TEXT, max_size=3),
        "env": VALUES,
        "cwd": VALUES,
        "pty": VALUES,
        "timeout": VALUES,
    },
)
FRAMES = st.tuples(st.integers(0, 4), st.integers(0, 10), VALUES | OPENS) | st.tuples(st.integers(1, 4), st.just(OPEN), OPENS)


@relaxed
@given(noise=st.binary(max_size=300))
def test_random_bytes(durable: Listening, noise: bytes) -> None:
    client = durable.connect()
    client.socket.sendall(noise)
    exhaust(client)
    durable.is_well()


@relaxed
@given(frames=st.lists(FRAMES, max_size=8))
def test_random_frames(durable: Listening, frames: list[tuple[int, int, object]]) -> None:
    client = durable.connect()
    try:
        for frame in frames:
            client.socket.sendall(encoded(*frame))
    except OSError:
        pass  # the agent has closed it already, rightly
    exhaust(client)
    durable.is_well()


DAMAGE = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)


@relaxed
@given(frames=st.lists(FRAMES, min_size=1, max_size=4), cut=st.integers(0, 200), damage=DAMAGE)
def test_damaged_frames(durable: Listening, frames: list[tuple[int, int, object]], cut: int, damage: list[tuple[int, int]]) -> None:
    stream = bytearray(b"".join(encoded(*frame) for frame in frames))
    for place, value in damage:
        stream[place % len(stream)] = value
    client = durable.connect()
    client.socket.sendall(bytes(stream[: len(stream) - cut % len(stream)]))
    exhaust(client)
    durable.is_well()


def test_events_of_the_connection_come_first(listening: Listening) -> None:
    client = listening.connect()
    assert client.receive(0)[0] == EVENT
    client.close()


def test_whoever_speaks_next_on_the_stream_is_greeted_and_finds_nothing_open(start_agent: StartAgent) -> None:
    agent = start_agent()
    client = agent.client
    stream = client.open("exec", argv=["/bin/cat"], stdin=True)
    pid = client.event(stream)["pid"]
    client.send(0, CANCEL)
    assert client.event(0)["event"] == "hello"
    assert client.call("ping", payload=b"?").result == {"payload": b"?"}
    client.send(stream, OPEN, {"op": "ping", "payload": b"its number is free"})
    assert client.finish(stream).result == {"payload": b"its number is free"}
    assert Path(f"/proc/{pid}").exists()  # test_freeze.py: who takes over can attach to it


def test_a_standard_stream_is_the_agents_alone(shipped_agent: Path) -> None:
    ours, theirs = socket.socketpair()
    with theirs, subprocess.Popen([shipped_agent, "--stream", "0"], stdin=theirs):
        client = Client(ours)
        assert client.run("/bin/readlink", "/proc/self/fd/0").data == b"/dev/null\n"
        ours.close()


many = settings(relaxed, max_examples=3000)
test_random_frames_at_length = pytest.mark.soak(
    many(given(frames=st.lists(FRAMES, max_size=8))(test_random_frames.hypothesis.inner_test))  # type: ignore[attr-defined]
)
test_damaged_frames_at_length = pytest.mark.soak(
    many(
        given(frames=st.lists(FRAMES, min_size=1, max_size=4), cut=st.integers(0, 200), damage=DAMAGE)(
            test_damaged_frames.hypothesis.inner_test  # type: ignore[attr-defined]
        )
    )
)
