"""Around a snapshot: what the agent keeps running when connections break, and which connections a copy drops."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.native.client import CANCEL, Client
from tests.native.conftest import Agent, StartAgent
from tests.native.test_protocol import Listening


def running(client: Client, tag: str) -> list[int]:
    """The pids of what was started with `tag` and has not ended."""
    return [process["pid"] for process in client.call("processes").result["processes"] if process["tag"] == tag]


@pytest.fixture
def listening(start_agent: StartAgent, tmp_path: Path) -> Listening:
    return Listening(start_agent, tmp_path)


def start(client: Client, tag: str) -> int:
    return int(client.event(client.open("exec", argv=["sh", "-c", "echo before; read line; echo after"], stdin=True, tag=tag))["pid"])


def await_end(client: Client, tag: str) -> None:
    while running(client, tag):
        time.sleep(0.005)


def test_what_a_broken_connection_had_started_survives_a_freeze_only(listening: Listening) -> None:
    observer = listening.connect()
    observer.call("freeze")
    during = listening.connect()
    pid = start(during, "during")
    during.close()
    observer.call("ping")
    observer.call("thaw")
    after = listening.connect()
    start(after, "after")
    after.close()
    await_end(observer, "after")
    assert running(observer, "during") == [pid]
    attached = observer.open("attach", pid=pid)
    assert observer.event(attached) == {"event": "started", "pid": pid}
    observer.upload(attached, b"line\n")
    assert observer.finish(attached).result["exit_code"] == 0


def test_a_copy_drops_the_connections_of_the_original(listening: Listening) -> None:
    earlier = listening.connect()
    pid = start(earlier, "earlier")
    earlier.call("freeze")
    copy = listening.connect()
    copy.call("restored")
    earlier.answers_until_closed()
    assert running(copy, "earlier") == [pid]
    start(copy, "later")
    copy.close()
    last = listening.connect()
    await_end(last, "later")
    assert running(last, "earlier") == [pid]


def test_a_freeze_that_nobody_ends_ends_by_itself(listening: Listening) -> None:
    observer = listening.connect()
    observer.call("freeze", seconds=0.01)
    while True:
        other = listening.connect()
        start(other, "other")
        other.close()
        time.sleep(0.02)
        if not running(observer, "other"):
            break
        for pid in running(observer, "other"):
            observer.call("signal", pid=pid, signal=9)


def test_what_the_only_stream_had_started_runs_on_when_somebody_else_takes_it_over(agent: Agent) -> None:
    client = agent.client
    pid = start(client, "earlier")
    client.send(0, CANCEL)
    assert client.event(0)["event"] == "hello"
    assert running(client, "earlier") == [pid]
    attached = client.open("attach", pid=pid)
    assert client.event(attached) == {"event": "started", "pid": pid}
    client.upload(attached, b"line\n")
    outcome = client.finish(attached)
    assert outcome.result["exit_code"] == 0
    assert outcome.data.endswith(b"after\n")
