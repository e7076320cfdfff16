"""A checkpoint can fall between any two bytes: both copies of the agent go on with whole frames, each with its own host.

The agent is a model here, small enough to be copied at any moment, as gVisor copies the real one.
"""

from __future__ import annotations

import copy
import socket
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.guest.frames import Kind
from agentenv.isolation.gvisor.client import Client
from agentenv.isolation.gvisor.frames import FrameReader, Passing, join, pack
from agentenv.isolation.gvisor.trunk import Carried, Trunk


@dataclass
class Model:
    """Answers each `ping`; a FrameReader raises at the first byte that is out of place."""

    reader: FrameReader = field(default_factory=FrameReader)
    out: bytearray = field(default_factory=bytearray)
    heard: list[int] = field(default_factory=list)

    def read(self, stream: socket.socket, most: int) -> None:
        try:
            data = stream.recv(most, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        for frame in self.reader.feed(data):
            if frame.stream == 0 and frame.kind is Kind.CANCEL:
                self.heard.clear()
                self.out += join(0, Kind.EVENT, pack({"event": "hello"}))
            elif frame.kind is Kind.OPEN:
                payload = msgspec.msgpack.decode(frame.body)["payload"]
                self.heard.append(len(payload))
                self.out += join(frame.stream, Kind.RESULT, pack({"payload": payload}))

    def write(self, stream: socket.socket, most: int) -> None:
        try:
            del self.out[: stream.send(self.out[:most], socket.MSG_DONTWAIT)]
        except BlockingIOError:
            return


class Side:
    """One host with one connection, and the agent at the other end of its stream."""

    def __init__(self, agent: Model, carried: Carried | None = None) -> None:
        self.agent = agent
        near, self.theirs = socket.socketpair()
        self.trunk = Trunk(near, self.theirs.dup(), carried)
        ours, self.user = socket.socketpair()
        self.client = Client(ours)
        self.trunk.clients.add(self.client)
        self.reader = FrameReader()
        self.asked: list[int] = []
        self.answered: list[int] = []

    def ask(self, size: int) -> None:
        self.asked.append(size)
        self.trunk.take(self.client, Passing(len(self.asked), Kind.OPEN, pack({"op": "ping", "payload": bytes(size)})))

    def look(self) -> None:
        self.client.flush()
        try:
            data = self.user.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        answers = [frame for frame in self.reader.feed(data) if frame.kind is Kind.RESULT]
        self.answered += [len(msgspec.msgpack.decode(frame.body)["payload"]) for frame in answers]

    def settle(self) -> None:
        while len(self.answered) < len(self.asked):
            self.trunk.flush()
            self.agent.read(self.theirs, 1 << 20)
            self.agent.write(self.theirs, 1 << 20)
            self.trunk.receive()
            self.look()

    def close(self) -> None:
        for one in (self.trunk, self.theirs, self.client, self.user):
            one.close()


steps = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from([0, 10, 5000, 300_000])),
    st.tuples(st.just("flush"), st.just(0)),
    st.tuples(st.just("read"), st.integers(1, 200_000)),
    st.tuples(st.just("write"), st.integers(1, 200_000)),
    st.tuples(st.just("receive"), st.just(0)),
)


def _do(side: Side, step: str, number: int) -> None:
    match step:
        case "ask":
            side.ask(number)
        case "flush":
            side.trunk.flush()
        case "read":
            side.agent.read(side.theirs, number)
        case "write":
            side.agent.write(side.theirs, number)
        case "receive":
            side.trunk.receive()
            side.look()


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=25), st.lists(steps, max_size=5))
def test_both_copies_go_on_with_whole_frames(before: list[tuple[str, int]], after: list[tuple[str, int]]) -> None:
    parent = Side(Model())
    for step, number in before:
        _do(parent, step, number)
    parent.trunk.drain()
    child = Side(copy.deepcopy(parent.agent), parent.trunk.capture())
    for step, number in after:
        _do(child, step, number)
        _do(parent, step, number)
    for size in (3, 4):
        child.ask(size)
        parent.ask(size)
    child.settle()
    parent.settle()
    assert child.answered == child.asked  # nothing of the parent's, nothing lost
    assert child.trunk.hello == join(0, Kind.EVENT, pack({"event": "hello"}))
    assert parent.answered == parent.asked
    assert child.agent.heard == child.asked
    child.close()
    parent.close()
