"""What the node says to an agent, over a socket whose other end is the test."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from agentenv.guest.frames import Decoder, Kind, encode
from agentenv.node import agent_words


class Listener:
    """A machine whose agent answers whatever it is asked, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []
        self._near, self._far = socket.socketpair()

    def dial(self) -> socket.socket:
        """The one connection there is."""
        return self._near

    def answer(self) -> None:
        """Until the connection is closed."""
        decoder = Decoder()
        with self._far:
            while count := self._far.recv_into(decoder.buffer()):
                for stream, kind, body in decoder.received(count):
                    assert kind is Kind.OPEN
                    self.asked.append(dict(body))
                    self._far.sendall(encode(stream, Kind.RESULT, {}))

    def close(self) -> None:
        """Closes both ends."""
        self._near.close()
        self._far.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


async def hear(listener: Listener, monkeypatch: pytest.MonkeyPatch, *, exact: float, machine_id: str | None) -> list[object]:
    monkeypatch.setattr(agent_words, "_EXACT", exact)
    answering = asyncio.create_task(asyncio.to_thread(listener.answer))
    await agent_words.restored(listener, "box", machine_id, timeout=5.0)  # type: ignore[arg-type]
    await answering
    return [body["op"] for body in listener.asked]


async def test_the_time_is_told_once_where_that_was_quick(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await hear(listener, monkeypatch, exact=60.0, machine_id="0" * 32) == ["restored"]


async def test_the_time_is_told_again_while_the_answers_are_slow(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time_ns()
    assert await hear(listener, monkeypatch, exact=-1.0, machine_id="0" * 32) == ["restored"] + ["configure"] * 8
    told = [body["realtime_ns"] for body in listener.asked]
    assert told == sorted(told)  # type: ignore[type-var]
    assert told[0] >= before  # type: ignore[operator]


async def test_a_machine_whose_clock_is_the_hosts_is_told_no_more(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await hear(listener, monkeypatch, exact=-1.0, machine_id=None) == ["restored"]
