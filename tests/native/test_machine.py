"""The agent as PID 1, and the operations on the machine as a whole."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.native.client import CANCEL, RESULT, AgentError, Client
from tests.native.conftest import EXIT_PATIENCE, Agent, StartAgent


def test_hello(agent: Agent) -> None:
    assert agent.hello == {"event": "hello", "protocol": 1, "version": "0.1.0", "pid": agent.process.pid}


def test_ping(client: Client) -> None:
    assert client.call("ping", payload=b"\x00\xff").result == {"payload": b"\x00\xff"}
    assert client.call("ping").result == {"payload": b""}


def test_stats(client: Client) -> None:
    stats = client.call("stats").result
    assert set(stats) == {"processes", "threads", "memory", "memory_limit", "cpu_seconds", "uptime", "disk_used", "disk_total", "load"}
    assert stats["processes"] >= 2
    assert stats["threads"] >= stats["processes"]
    assert stats["memory"] is None
    assert stats["memory_limit"] is None
    assert 0 < stats["disk_used"] <= stats["disk_total"]
    assert 0 <= stats["uptime"] < 60


def test_memory_usage_is_read_afresh(start_agent: StartAgent, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    usage.write_text("1000\n")
    descriptor = os.open(usage, os.O_RDONLY)
    try:
        client = start_agent("--memory-usage", str(descriptor), "--memory-limit", "5000", descriptors=(descriptor,)).client
    finally:
        os.close(descriptor)
    assert (client.call("stats").result["memory"], client.call("stats").result["memory_limit"]) == (1000, 5000)
    usage.write_text("2000\n")
    assert client.call("stats").result["memory"] == 2000


def test_configure(start_agent: StartAgent, tmp_path: Path) -> None:
    client = start_agent("--env", "A=1", "--cwd", "/usr").client
    assert client.run("pwd").data == b"/usr\n"
    client.call("configure", env={"B": "2"}, cwd=str(tmp_path), limits={"memory": 1 << 30, "cpus": 2})
    lines = client.run("env").data.decode().splitlines()
    assert "B=2" in lines
    assert "A=1" not in lines
    assert client.run("pwd").data.decode().strip() == str(tmp_path)
    assert client.call("stats").result["memory_limit"] == 1 << 30
    if os.geteuid() == 0:
        client.call("configure", user="nobody", cwd="/")
        assert client.run("id", "-un").data == b"nobody\n"
        assert client.run("id", "-un", user="root").data == b"root\n"
    for bad in ({"env": [1]}, {"limits": {"memory": -1}}, {"limits": {"cpus": "x"}}, {"cwd": 5.0}, {"realtime_ns": -1}):
        with pytest.raises(AgentError, match="EPROTO"):
            client.call("configure", **bad)


def test_stop_and_continue(client: Client) -> None:
    stream = client.open("exec", argv=["sh", "-c", "sleep 100 & echo $!; wait"])
    leader = client.event(stream)["pid"]
    child = int(client.receive(stream)[1])

    def states() -> set[str]:
        return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in (leader, child)}

    client.call("stop_all")
    assert states() == {"T"}
    client.call("continue_all")
    assert states() <= {"S", "R"}
    client.send(stream, CANCEL)
    client.finish(stream)


def test_shutdown_is_gentle_first(agent: Agent) -> None:
    stream = agent.client.open("exec", argv=["sh", "-c", "trap 'echo goodbye; exit 0' TERM; echo ready; while :; do sleep 0.02; done"])
    agent.client.event(stream)
    assert agent.client.receive(stream)[1] == b"ready\n"
    assert agent.client.call("shutdown", grace=30).result == {}
    assert agent.client.finish(stream).data == b"goodbye\n"
    assert agent.process.wait(EXIT_PATIENCE) == 0


def test_shutdown_kills_after_the_grace(agent: Agent) -> None:
    stream = agent.client.open("exec", argv=["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
    agent.client.event(stream)
    assert agent.client.receive(stream)[1] == b"ready\n"
    assert agent.client.call("shutdown", grace=0.2).result == {}
    assert agent.process.wait(EXIT_PATIENCE) == 0


def test_sigterm_is_a_shutdown(agent: Agent) -> None:
    stream = agent.client.open("exec", argv=["sleep", "100"])
    agent.client.event(stream)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.client.finish(stream).result["signal"] == signal.SIGTERM
    assert agent.process.wait(EXIT_PATIENCE) == 0


def test_the_end_of_the_stream_ends_everything(start_agent: StartAgent) -> None:
    agent = start_agent()
    stream = agent.client.open("exec", argv=["setsid", "sh", "-c", "setsid sleep 100 & echo $!; wait"], keep=True)
    agent.client.event(stream)
    pid = int(agent.client.receive(stream)[1])
    assert agent.end() == 0
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not Path(f"/proc/{pid}").exists()


class TestAsInit:
    def test_it_is_pid_1(self, as_init: Agent) -> None:
        assert as_init.hello["pid"] == 1

    def test_limits_are_shown(self, as_init: Agent) -> None:
        client = as_init.client
        meminfo = dict(line.split(":") for line in client.call("read", path="/run/agentenv/meminfo").data.decode().splitlines())
        assert meminfo["MemTotal"].split() == [str(512 << 10), "kB"]
        assert meminfo["MemAvailable"].split() == [str(512 << 10), "kB"]
        assert meminfo["SwapTotal"].split() == ["0", "kB"]
        cpuinfo = client.call("read", path="/run/agentenv/cpuinfo").data.decode()
        assert [line for line in cpuinfo.splitlines() if line.startswith("processor")] == ["processor\t: 0"]
        assert client.call("read", path="/run/agentenv/cpu_online").data == b"0\n"
        client.call("configure", limits={"memory": 256 << 20, "cpus": 4})
        assert client.call("read", path="/run/agentenv/cpu_online").data == b"0-3\n"
        assert f"{256 << 10} kB" in client.call("read", path="/run/agentenv/meminfo").data.decode()

    def test_programs_see_them_over_proc(self, as_init: Agent) -> None:
        script = "mount --bind /run/agentenv/meminfo /proc/meminfo && free -b | awk '/Mem:/ {print $2}'"
        assert int(as_init.client.run("sh", "-c", script).data) == 512 << 20

    def test_stop_all_spares_the_agent(self, as_init: Agent) -> None:
        client = as_init.client
        stream = client.open("exec", argv=["sh", "-c", "echo $$; read x; echo $x"], stdin=True)
        pid = client.event(stream)["pid"]
        client.call("stop_all")
        state = client.call("read", path=f"/proc/{pid}/stat").data.decode().rpartition(")")[2].split()[0]
        assert state == "T"
        client.call("continue_all")
        client.upload(stream, b"on\n")
        assert client.finish(stream).data.endswith(b"on\n")

    def test_orphans_become_ours_and_are_reaped(self, as_init: Agent) -> None:
        client = as_init.client
        script = "for i in 1 2 3 4 5; do sh -c 'sleep 0.01 & exec true' & done; wait"
        for _ in range(10):
            client.run("sh", "-c", script)
        while client.call("stats").result["processes"] > 1:
            time.sleep(0.01)
        assert client.call("processes").result == {"processes": []}

    def test_restored(self, as_init: Agent) -> None:
        client = as_init.client
        hooks = {
            "10-first": "hostname > /run/first",
            "15-not-executable": "exit 1",
            "20-second": "cat /run/first /etc/machine-id > /run/second",
        }
        script = "mount -t tmpfs none /etc && mkdir -p /etc/agentenv/restored.d && cd /etc/agentenv/restored.d"
        for name, command in hooks.items():
            script += f" && printf '#!/bin/sh\\n{command}\\n' > {name}"
        script += " && chmod +x 10-first 20-second && hostname born && hostname > /etc/hostname"
        script += " && printf '127.0.1.1 born born.local\\tborn\\n::1 unborn\\n' > /etc/hosts"
        assert client.run("sh", "-c", script).result["exit_code"] == 0
        identity = "0123456789abcdef" * 2
        client.call("restored", entropy=os.urandom(64), hostname="reborn", machine_id=identity)
        assert client.call("read", path="/run/second").data.decode().split() == ["reborn", identity]
        assert client.call("read", path="/etc/hostname").data == b"reborn\n"
        assert client.call("read", path="/etc/hosts").data == b"127.0.1.1 reborn born.local\treborn\n::1 unborn\n"
        client.run("sh", "-c", "chmod +x /etc/agentenv/restored.d/15-not-executable")
        with pytest.raises(AgentError, match="15-not-executable ended with status 1"):
            client.call("restored")
        for bad in ({"machine_id": "xyz"}, {"entropy": bytes(1000)}, {"realtime_ns": "now"}):
            with pytest.raises(AgentError, match="EPROTO"):
                client.call("restored", **bad)

    def test_configure_names_the_machine(self, as_init: Agent) -> None:
        as_init.client.call("configure", hostname="box-7")
        assert as_init.client.run("hostname").data == b"box-7\n"

    def test_shutdown_ends_the_namespace(self, as_init: Agent) -> None:
        stream = as_init.client.open("exec", argv=["sh", "-c", "trap '' TERM; echo ready; sleep 100"])
        as_init.client.event(stream)
        as_init.client.receive(stream)
        assert as_init.client.call("shutdown", grace=0.1).result == {}
        assert as_init.client.answers_until_closed()[-1] == (stream, RESULT)
        assert as_init.process.wait(EXIT_PATIENCE) == 0
