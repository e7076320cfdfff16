"""The launcher's own manners: what it does with requests that are none, and how its answers are read."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentenv.errors import BackendUnavailable
from agentenv.guest.native import binary
from agentenv.isolation.namespace.answers import Facts, explain, facts, parse, refused, stages
from agentenv.isolation.namespace.seccomp import compile_filter

KEYS = ["op", "id", "hostname", "netns", "into", "enter", "tree", "upper", "work", "lower", "cpus", "tmp", "shm", "arg", "show_memory", "x"]
WORDS = st.sampled_from(["launch", "affinity", "kill", "/", "", "0", "18446744073709551616", "-1"])
VALUES = WORDS | st.text(max_size=40).filter(lambda text: not text.startswith("/"))
RECORDS = st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=30)


COMMAND = (binary("agentenv-launch"), "--agent", binary("agentenv-agent"))


def _start(control: socket.socket, *options: str) -> subprocess.Popen[bytes]:
    """A launcher at the other end of `control`, which it takes over."""
    program = os.memfd_create("filter", 0)
    os.write(program, compile_filter())
    words = [*COMMAND, "--control", str(control.fileno()), "--filter", str(program), *options]
    process = subprocess.Popen(words, pass_fds=(control.fileno(), program))
    control.close()
    os.close(program)
    return process


class Daemon:
    """A launcher to which anything can be said."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = _start(theirs)
        ours.settimeout(30)
        self.control = ours
        self.ready = self.answer()

    def answer(self) -> dict[str, str]:
        return parse(self.control.recv(65536))

    def ask(self, message: bytes) -> dict[str, str]:
        self.control.send(message)
        return self.answer()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    started = Daemon()
    if started.ready.get("event") != "ready":
        pytest.skip(f"no namespaces here: {started.ready}")
    yield started
    started.control.close()
    assert started.process.wait(30) == 0


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=st.binary(min_size=1, max_size=300))
def test_noise_is_refused_and_survived(daemon: Daemon, message: bytes) -> None:
    answer = daemon.ask(message)
    assert (answer["event"], answer["stage"]) == ("failed", "request")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=RECORDS)
def test_well_formed_nonsense_is_refused_and_survived(daemon: Daemon, records: list[tuple[str, str]]) -> None:
    message = b"".join(f"{key}={value}".encode(errors="replace") + b"\0" for key, value in records)
    if not message:
        return
    daemon.control.send(message)
    daemon.control.send(b"op=affinity\0id=no-such-sandbox\0")
    while (answer := daemon.answer()).get("id") != "no-such-sandbox":
        assert answer["event"] in ("failed", "exit")
    assert (answer["stage"], answer["errno"]) == ("affinity", "3")


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (b"op=launch\0id=a\0hostname=x", "does not end a record"),
        (b"op=launch\0id=a\0nonsense\0", "without ="),
        (b"op=launch\0id=a\0colour=red\0", "unknown record"),
        (b"op=launch\0id=a\0upper=/x\0", "before its tree"),
        (b"op=launch\0id=a\0tree=usr\0", "not absolute"),
        (b"op=launch\0id=a\0tree=/\0upper=here\0", "not absolute"),
        (b"op=launch\0id=a\0tree=/usr\0upper=/u\0work=/w\0lower=/l\0arg=a\0", "first tree is not /"),
        (b"op=launch\0id=a\0tree=/\0upper=/u\0work=/w\0arg=a\0", "without upper, work or lower"),
        (b"op=launch\0id=a\0tree=/\0upper=/u\0work=/w\0lower=/l\0", "no arguments"),
        (b"op=launch\0id=a\0tmp=lots\0", "no number"),
        (b"op=launch\0id=a\0cpus=99999999\0", "no number of cores"),
        (b"op=launch\0hostname=x\0", "no id"),
        (b"op=dance\0id=a\0", "unknown op"),
        (b"op=launch\0id=a\0" + b"tree=/x\0" * 65, "too many trees"),
        (b"op=launch\0id=a\0tree=/\0" + b"lower=/x\0" * 2049, "too many lower"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(daemon: Daemon, message: bytes, what: str) -> None:
    assert what in daemon.ask(message)["what"]


def test_the_daemon_ends_when_its_owner_lets_go() -> None:
    started = Daemon()
    started.control.close()
    assert started.process.wait(30) in (0, 1)


def test_the_daemon_ends_with_its_owner_though_the_socket_is_still_open() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as owner:
        daemon = _start(theirs, "--owner", str(owner.pid))
        assert select.select([ours], [], [], 30)[0]
        owner.kill()
    assert daemon.wait(30) in (0, 1)
    ours.close()


def test_answers_are_read() -> None:
    assert parse(b"event=exit\0id=a\0signal=9\0") == {"event": "exit", "id": "a", "signal": "9"}
    assert facts({"event": "ready", "user_namespace": "1", "many_ids": "0", "landlock": "6"}) == Facts(True, False, 6)
    assert [(stage.name, stage.seconds) for stage in stages("cgroup:1500000,exec:2000")] == [("cgroup", 0.0015), ("exec", 2e-6)]
    assert "mounting /proc failed in stage 'files': Operation not permitted" in str(
        refused({"what": "mounting /proc", "stage": "files", "errno": "1"})
    )


@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        ({"what": "making a user namespace", "errno": "1"}, "unprivileged_userns_clone"),
        ({"what": "mounting the overlay of /", "errno": "22"}, "AGENTENV_HOME"),
        ({"what": "mounting /proc", "errno": "1"}, "systempaths=unconfined"),
        ({"what": "making a mount namespace", "errno": "1"}, "CAP_SYS_ADMIN"),
        ({"what": "making a mount namespace", "errno": "38"}, "too old"),
        ({"what": "something", "errno": "5"}, "agentenv doctor"),
    ],
)
def test_each_refusal_has_a_remedy(answer: dict[str, str], remedy: str) -> None:
    reason, advice = explain(answer)
    assert answer["what"] in reason
    assert remedy in advice
    with pytest.raises(BackendUnavailable, match="cannot work here"):
        facts({"event": "unusable", **answer})


def test_the_binary_says_nothing_without_arguments() -> None:
    assert subprocess.run([binary("agentenv-launch")], capture_output=True, check=True).stdout == b""
    assert Path(binary("agentenv-launch")).stat().st_size < 300_000
