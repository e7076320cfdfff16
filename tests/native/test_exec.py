"""Processes: what they get, what they print, how they end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.native.client import CALL, CANCEL, DATA, END, ERROR, EVENT, RESULT, WINDOW, AgentError, Client
from tests.native.conftest import Agent, StartAgent

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.005)


def test_output_and_status(client: Client) -> None:
    outcome = client.run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (outcome.data, outcome.errors) == (b"out\n", b"err\n")
    assert outcome.result["exit_code"] == 3
    assert outcome.result["signal"] is None
    assert outcome.result["timed_out"] is None
    assert outcome.events[0]["event"] == "started"


def test_resource_usage_is_told(client: Client) -> None:
    result = client.run("sh", "-c", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done").result
    assert result["user"] > 0
    assert result["wall"] > 0
    assert result["max_rss"] > 100_000


def test_shell(client: Client) -> None:
    assert client.call("exec", shell="echo $((6 * 7))", login=False).data == b"42\n"
    assert client.call("exec", shell="shopt -q login_shell && echo login", env={"HOME": "/nowhere"}).data.endswith(b"login\n")


def test_environment(start_agent: StartAgent) -> None:
    client = start_agent("--env", "COLOUR=red", "--env", "SHAPE=round").client
    lines = client.run("env", env={"SHAPE": "square", "NEW": "a=b"}).data.decode().splitlines()
    assert {"COLOUR=red", "SHAPE=square", "NEW=a=b", "HOME=/root", "USER=root"} <= set(lines)
    assert not [line for line in lines if line.startswith("PYTEST")]
    assert len([line for line in lines if line.startswith("PATH=")]) == 1


def test_working_directory(client: Client, tmp_path: Path) -> None:
    assert client.run("pwd", cwd=str(tmp_path)).data.decode().strip() == str(tmp_path)
    assert client.run("pwd").data == b"/\n"
    with pytest.raises(AgentError, match="working directory") as caught:
        client.run("pwd", cwd="/nowhere")
    assert caught.value.code == "ENOENT"


def test_stdin_is_passed_on_and_closed(client: Client) -> None:
    stream = client.open("exec", argv=["cat"], stdin=True)
    content = os.urandom(1_500_000)
    client.upload(stream, content)
    assert client.finish(stream).data == content


def test_without_stdin_there_is_none(client: Client) -> None:
    assert client.run("cat").data == b""


def test_input_that_nobody_reads_is_dropped(client: Client) -> None:
    stream = client.open("exec", argv=["sh", "-c", "exec <&-; sleep 0.2"], stdin=True)
    client.upload(stream, bytes(2_000_000))
    assert client.finish(stream).result["exit_code"] == 0


def test_a_signal_reaches_the_group(client: Client) -> None:
    stream = client.open("exec", argv=["sh", "-c", "sleep 100 & wait"])
    client.event(stream)
    client.send(stream, CALL, {"signal": int(signal.SIGTERM)})
    result = client.finish(stream).result
    assert (result["exit_code"], result["signal"]) == (None, signal.SIGTERM)


def test_wall_timeout_keeps_what_was_printed(client: Client) -> None:
    outcome = client.run("sh", "-c", "echo before; seq 20000; sleep 100", timeout=0.3)
    assert outcome.result["timed_out"] == "wall"
    assert outcome.result["signal"] == signal.SIGKILL
    assert outcome.data.decode().splitlines() == ["before", *map(str, range(1, 20001))]


def test_idle_timeout_counts_from_the_last_output(client: Client) -> None:
    script = "for i in 1 2 3 4 5; do echo $i; sleep 0.1; done; sleep 100"
    outcome = client.run("sh", "-c", script, idle_timeout=0.4)
    assert outcome.result["timed_out"] == "idle"
    assert outcome.data == b"1\n2\n3\n4\n5\n"


def test_a_process_that_the_host_holds_up_is_not_idle(client: Client) -> None:
    client.grants = False
    stream = client.open("exec", argv=["sh", "-c", "yes | head -c 400000"], idle_timeout=1.0)
    received = 0
    while received < 262_144:
        kind, body = client.receive(stream)
        received += len(body) if kind == DATA else 0
    time.sleep(1.5)
    client.grants = True
    client.send(stream, WINDOW, received)
    outcome = client.finish(stream)
    assert outcome.result["timed_out"] is None
    assert received + len(outcome.data) == 400_000


def test_a_timeout_takes_the_whole_session(client: Client, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    script = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        " os.setpgid(0, 0)\n"
        f" open('{noted}', 'w').write(str(os.getpid()))\n"
        " time.sleep(100)\n"
        "time.sleep(100)"
    )
    result = client.run("python3", "-c", script, timeout=2).result
    assert result["timed_out"] == "wall"
    wait_until_gone(int(noted.read_text()))


def test_a_daemon_that_holds_the_pipe_does_not_delay_the_result(client: Client) -> None:
    stream = client.open("exec", argv=["sh", "-c", "sleep 100 & echo $!"])
    outcome = client.finish(stream)
    assert outcome.result["exit_code"] == 0
    daemon = int(outcome.data)
    assert alive(daemon)
    os.kill(daemon, signal.SIGKILL)


def test_cancel_kills(client: Client) -> None:
    stream = client.open("exec", argv=["sleep", "100"])
    pid = client.event(stream)["pid"]
    client.send(stream, CANCEL)
    assert client.finish(stream).result["signal"] == signal.SIGKILL
    wait_until_gone(pid)


def test_cancel_ends_what_nobody_listens_to(client: Client) -> None:
    client.grants = False
    stream = client.open("exec", argv=["seq", "1000000"])
    received = 0
    while received < 262_144:
        kind, body = client.receive(stream)
        received += len(body) if kind == DATA else 0
    client.send(stream, CANCEL)
    assert client.finish(stream).data == b""


def test_a_pause_does_not_count(agent: Agent) -> None:
    """The machine stands still for longer than the timeout, as a frozen cgroup does."""
    stream = agent.client.open("exec", argv=["sh", "-c", "read x; echo $x"], stdin=True, timeout=2.5)
    agent.client.event(stream)
    agent.process.send_signal(signal.SIGSTOP)
    time.sleep(3.2)
    agent.process.send_signal(signal.SIGCONT)
    agent.client.call("ping")
    agent.client.send(stream, DATA, b"in time\n")
    outcome = agent.client.finish(stream)
    assert (outcome.result["timed_out"], outcome.data) == (None, b"in time\n")


def test_what_cannot_be_started(client: Client) -> None:
    for argv, code in ((["/nowhere"], "ENOENT"), (["no-such-program"], "ENOENT"), (["/etc/passwd"], "EACCES"), (["/"], "EACCES")):
        with pytest.raises(AgentError) as caught:
            client.run(*argv)
        assert caught.value.code == code
    assert client.run("true").result["exit_code"] == 0


def test_bad_parameters(client: Client) -> None:
    bad: list[dict[str, object]] = [
        {},
        {"argv": []},
        {"argv": "ls"},
        {"argv": [1]},
        {"argv": ["a\0b"]},
        {"argv": ["true"], "shell": "true"},
        {"argv": ["true"], "env": {"A=B": "x"}},
        {"argv": ["true"], "env": ["x"]},
        {"argv": ["true"], "timeout": -1},
        {"argv": ["true"], "timeout": float("nan")},
        {"argv": ["true"], "pty": {"rows": 0, "cols": 80}},
        {"argv": ["true"], "stdin": 1},
        {"argv": ["true"], "tag": "x" * 2000},
    ]
    for parameters in bad:
        with pytest.raises(AgentError) as caught:
            client.call("exec", **parameters)
        assert caught.value.code == "EPROTO", parameters


@needs_root
def test_another_user(client: Client) -> None:
    outcome = client.run("sh", "-c", "id -u; id -g; echo $HOME $USER", user="nobody")
    assert outcome.data.decode().split() == ["65534", "65534", "/nonexistent", "nobody"]
    assert client.run("id", "-u", user=12345).data == b"12345\n"
    assert client.run("sh", "-c", "id -u; id -g", user="1:daemon").data == b"1\n1\n"
    with pytest.raises(AgentError, match="user 'ghost'") as caught:
        client.run("true", user="ghost")
    assert caught.value.code == "ENOENT"


@needs_root
def test_another_user_has_no_capabilities_left(client: Client) -> None:
    status = client.run("grep", "CapEff", "/proc/self/status", user="nobody").data
    assert int(status.split()[1], 16) == 0


def test_pty(client: Client) -> None:
    stream = client.open("exec", argv=["sh", "-c", "tty; stty size; read line; stty size; echo got $line"], pty={"rows": 30, "cols": 100})
    client.event(stream)
    text = b""
    while b"30 100" not in text:
        text += client.receive(stream)[1]
    client.send(stream, CALL, {"resize": [50, 132]})
    client.send(stream, DATA, b"words\n")
    outcome = client.finish(stream)
    text += outcome.data
    assert b"/dev/pts/" in text
    assert b"50 132" in text
    assert b"got words" in text
    assert outcome.result["exit_code"] == 0


def test_pty_takes_control_characters(client: Client) -> None:
    stream = client.open("exec", argv=["sh", "-c", "trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.05; done"], pty={})
    client.event(stream)
    text = b""
    while b"ready" not in text:
        text += client.receive(stream)[1]
    client.send(stream, DATA, b"\x03")
    outcome = client.finish(stream)
    assert b"interrupted" in outcome.data
    assert outcome.result["exit_code"] == 7


def test_pty_end_of_input(client: Client) -> None:
    stream = client.open("exec", argv=["cat"], pty={"rows": 24, "cols": 80})
    client.send(stream, DATA, b"line\n")
    client.send(stream, END)
    outcome = client.finish(stream)
    assert outcome.data.count(b"line") == 2
    assert outcome.result["exit_code"] == 0


def test_signals_are_as_for_any_program(client: Client) -> None:
    outcome = client.run("grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
    assert {int(line.split()[1], 16) for line in outcome.data.decode().splitlines()} == {0}


def test_descriptors_are_standard_streams_only(client: Client) -> None:
    client.open("exec", argv=["sleep", "100"], stdin=True)
    listed = client.run("ls", "/proc/self/fd").data.split()
    assert len(listed) == 4  # 0-2 and the directory that ls reads


def test_file_limit_is_the_original_one(client: Client) -> None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert int(client.run("sh", "-c", "ulimit -n").data) == soft


def test_a_thousand_at_once(client: Client) -> None:
    streams = [client.open("exec", argv=["sh", "-c", f"read x; echo {i} $x"], stdin=True) for i in range(1000)]
    listed = client.call("processes").result["processes"]
    assert len(listed) == 1000
    for stream in streams:
        client.send(stream, DATA, b"go\n")
    for i, stream in enumerate(streams):
        assert client.finish(stream).data == f"{i} go\n".encode()


def test_one_noisy_process_does_not_starve_another(client: Client) -> None:
    client.grants = False
    noisy = client.open("exec", argv=["yes"])
    client.event(noisy)
    for _ in range(20):
        assert client.run("echo", "quiet").data == b"quiet\n"
    client.send(noisy, CANCEL)
    client.send(noisy, WINDOW, 1 << 30)
    assert client.finish(noisy).result["signal"] == signal.SIGKILL


def test_credit_is_never_exceeded(client: Client) -> None:
    client.grants = False
    stream = client.open("exec", argv=["sh", "-c", "yes | head -c 1000000; yes | head -c 1000000 >&2"])
    client.event(stream)
    total, credit = 0, 262_144
    while True:
        kind, body = client.receive(stream)
        if kind == RESULT:
            break
        credit -= len(body)
        total += len(body)
        assert credit >= 0
        if credit < 100_000:
            client.send(stream, WINDOW, 150_000)
            credit += 150_000
    assert total == 2_000_000


def test_what_a_command_left_behind_is_ended_by_its_session(client: Client) -> None:
    stream = client.open("exec", shell="sleep 1000 >/dev/null 2>&1 & echo $!", login=False)
    outcome = client.finish(stream)
    left, leader = int(outcome.data), outcome.events[0]["pid"]
    assert Path(f"/proc/{left}").exists()
    client.call("signal", pid=leader, signal=9, session=True)
    while Path(f"/proc/{left}").exists():
        client.call("ping", payload=b"")


def test_listing_and_signalling(client: Client) -> None:
    stream = client.open("exec", argv=["sleep", "100"], cwd="/tmp", tag="nap")
    pid = client.event(stream)["pid"]
    (entry,) = client.call("processes").result["processes"]
    assert abs(entry.pop("started") - time.time()) < 60
    assert entry == {"pid": pid, "argv": ["sleep", "100"], "cwd": "/tmp", "user": "root", "tag": "nap", "pty": False}
    client.call("signal", pid=pid, signal=int(signal.SIGUSR1))
    assert client.finish(stream).result["signal"] == signal.SIGUSR1
    with pytest.raises(AgentError) as caught:
        client.call("signal", pid=pid, signal=9)
    assert caught.value.code == "ESRCH"


def test_long_commands_are_cut_in_the_listing(client: Client) -> None:
    long = ["x" * 3000, "y" * 3000, "z"]
    streams = [client.open("exec", argv=["sh", "-c", "sleep 100", *long]) for _ in range(3)]
    for entry in client.call("processes").result["processes"]:
        assert entry["argv"] == ["sh", "-c", "sleep 100", long[0], "..."]
    for stream in streams:
        client.send(stream, CANCEL)
        client.finish(stream)


class TestKeep:
    def test_cancel_only_detaches(self, client: Client) -> None:
        stream = client.open("exec", argv=["sh", "-c", "echo one; echo two >&2; read x; echo three $x"], stdin=True, keep=True)
        pid = client.event(stream)["pid"]
        kinds = {client.receive(stream)[1] for _ in range(2)}
        assert kinds == {b"one\n", b"two\n"}
        client.send(stream, CANCEL)
        with pytest.raises(AgentError) as caught:
            client.finish(stream)
        assert caught.value.code == "ECANCELED"
        again = client.open("attach", pid=pid)
        client.send(again, DATA, b"more\n")
        outcome = client.finish(again)
        assert (outcome.data, outcome.errors) == (b"one\nthree more\n", b"two\n")
        assert outcome.result["exit_code"] == 0

    def test_the_last_to_attach_has_it(self, client: Client) -> None:
        first = client.open("exec", argv=["cat"], stdin=True, keep=True)
        pid = client.event(first)["pid"]
        second = client.open("attach", pid=pid)
        kind, body = client.receive(first)
        assert (kind, body["code"]) == (ERROR, "ESTALE")
        client.send(second, DATA, b"hello")
        client.send(second, END)
        assert client.finish(second).data == b"hello"

    def test_the_outcome_waits_to_be_fetched(self, client: Client) -> None:
        stream = client.open("exec", argv=["sh", "-c", "read x; seq 100000; exit 5"], stdin=True, keep=True)
        pid = client.event(stream)["pid"]
        client.send(stream, DATA, b"go\n")
        client.send(stream, CANCEL)
        while client.call("processes").result["processes"]:
            time.sleep(0.01)
        outcome = client.call("attach", pid=pid)
        whole = "".join(f"{i}\n" for i in range(1, 100001)).encode()
        assert outcome.data == whole[-65_536:]
        assert outcome.result["exit_code"] == 5
        with pytest.raises(AgentError) as caught:
            client.call("attach", pid=pid)
        assert caught.value.code == "ESRCH"

    def test_many_small_pieces_take_bounded_memory(self, agent: Agent) -> None:
        client = agent.client
        script = "for i in range(20000): os.write(1, b'o'); os.write(2, b'e'); select.select([], [], [], 0)"
        stream = client.open("exec", argv=["python3", "-c", f"import os, select\n{script}\nsys_in = os.read(0, 1)"], stdin=True, keep=True)
        pid = client.event(stream)["pid"]
        seen = 0
        while seen < 40_000:
            seen += len(client.receive(stream)[1])
        again = client.open("attach", pid=pid)
        assert client.event(again)["pid"] == pid
        client.send(again, END)
        outcome = client.finish(again)
        assert 0 < len(outcome.data) <= 20_000
        assert 0 < len(outcome.errors) <= 20_000

    def test_only_kept_processes_can_be_attached_to(self, client: Client) -> None:
        stream = client.open("exec", argv=["sleep", "100"])
        with pytest.raises(AgentError) as caught:
            client.call("attach", pid=client.event(stream)["pid"])
        assert caught.value.code == "EINVAL"


def test_orphans_are_reaped(agent: Agent) -> None:
    script = 'sh -c \'sh -c "sleep 0.05" & sh -c "sleep 0.05" &\' & wait; sleep 0.3'
    agent.client.run("sh", "-c", script)
    children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text().split()
    assert children == []


def test_stream_events_come_in_order(client: Client) -> None:
    stream = client.open("exec", argv=["true"])
    assert [client.receive(stream)[0] for _ in range(2)] == [EVENT, RESULT]
