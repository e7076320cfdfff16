"""A real kernel boots with our initramfs and root image, and its agent serves over virtio-serial."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

import pytest
from tests.isolation.vm.emulated import BOOT_PATIENCE, EXIT_PATIENCE, EmulatedGuest, plain
from tests.native.client import AgentError, Client

from agentenv.isolation.contract import MachineSpec
from agentenv.isolation.vm import GuestConfig, GuestFiles, clone_disk, configure_guest, dial_serial

pytestmark = [pytest.mark.timeout(300), pytest.mark.soak]
MIB = 1 << 20


def test_the_guest_sees_its_own_machine(guest: EmulatedGuest, client: Client) -> None:
    assert guest.shell(client, "nproc") == "2"
    assert guest.shell(client, "hostname") == "box"
    assert guest.shell(client, "cat /etc/hostname") == "box"
    assert len(guest.shell(client, "cat /etc/machine-id")) == 32
    assert guest.shell(client, "cat /etc/resolv.conf") == "nameserver 10.0.2.3"
    stats = client.call("stats").result
    assert 150 * MIB < stats["memory_limit"] < 256 * MIB
    assert 0 < stats["memory"] < stats["memory_limit"]
    assert abs(int(guest.shell(client, "date +%s")) - time.time()) < 5


def test_mounts(guest: EmulatedGuest, client: Client) -> None:
    mounted = {line.split()[1]: line.split()[0] for line in guest.shell(client, "cat /proc/mounts").splitlines()}
    assert mounted["/"] == "overlay"
    assert {"/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/run", "/tmp", "/sys/fs/cgroup"} <= set(mounted)
    assert guest.shell(client, "ls -A /root; ls -d /modules /init /lower 2>&1 | cat").count("No such file") == 3


def test_files_written_inside_lie_on_the_disk(guest: EmulatedGuest, client: Client) -> None:
    stream = client.open("write", path="/root/note", mode=0o600)
    client.upload(stream, b"x" * 300_000)
    client.finish(stream)
    assert guest.shell(client, "stat -c '%s %a' /root/note") == "300000 600"
    assert client.call("read", path="/root/note").data == b"x" * 300_000
    size = guest.disk.stat().st_blocks
    guest.shell(client, "dd if=/dev/urandom of=/root/large bs=64k count=64 2>/dev/null; sync -f /root")
    client.call("freeze", disk=True)
    client.call("thaw")
    assert guest.disk.stat().st_blocks >= size + 4 * MIB // 512


def test_terminal_and_user(guest: EmulatedGuest, client: Client) -> None:
    outcome = client.run("sh", "-c", "test -t 0 && echo terminal; exit 3", pty={"rows": 24, "cols": 80}, user="user")
    assert outcome.data == b"terminal\r\n"
    assert outcome.result["exit_code"] == 3


def test_defaults_of_the_image_are_configured(guest: EmulatedGuest, client: Client, tree: Path, tmp_path: Path) -> None:
    spec = MachineSpec("m", tmp_path, plain(tree), "box", env={"COLOUR": "green"})
    configure_guest(dial_serial(guest.port(2), BOOT_PATIENCE), spec, BOOT_PATIENCE)
    assert guest.shell(client, "echo $COLOUR; pwd") == "green\n/root"


def test_each_port_is_a_connection_of_its_own(guest: EmulatedGuest, client: Client) -> None:
    second = guest.dial(2)
    first_stream = client.open("exec", argv=["cat"], stdin=True)
    client.event(first_stream)
    assert second.run("cat", "/proc/uptime").data
    client.upload(first_stream, b"still here")
    assert client.finish(first_stream).data == b"still here"
    second.close()


def test_a_port_serves_again_when_the_host_comes_back(guest: EmulatedGuest) -> None:
    for _ in range(3):
        again = guest.dial(3)
        stream = again.open("exec", argv=["sleep", "1000"], tag="left")
        again.event(stream)
        again.close()
    last = guest.dial(3)
    while any(process["tag"] == "left" for process in last.call("processes").result["processes"]):
        last.call("ping")
    last.close()


def test_the_number_of_processes_is_limited(guest: EmulatedGuest, client: Client) -> None:
    assert guest.shell(client, "cat /sys/fs/cgroup/agentenv/pids.max") == "65"
    outcome = client.run("bash", "-c", "for i in {1..80}; do sleep 5 & done; wait")
    assert b"Resource temporarily unavailable" in outcome.errors or outcome.result["exit_code"] != 0
    assert "max 0" not in guest.shell(client, "cat /sys/fs/cgroup/agentenv/pids.events")


def test_a_copy_drops_what_the_original_had_open(guest: EmulatedGuest, client: Client) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    talker = client.open(
        "exec", argv=["bash", "-c", f"exec 3<>/dev/tcp/10.0.2.2/{port}; echo connected; read <&3; echo over; exec sleep 1000"]
    )
    pid = client.event(talker)["pid"]
    outside, _ = listener.accept()
    assert client.receive(talker)[1] == b"connected\n"
    client.call("freeze")
    hook = "#!/bin/sh\necho ran > /run/hook\n"
    stream = client.open("write", path="/etc/agentenv/restored.d/10-hook", mode=0o755)
    client.upload(stream, hook.encode())
    client.finish(stream)

    copy = guest.dial(2)
    now = time.time_ns() + 3600 * 1_000_000_000
    copy.call("restored", entropy=os.urandom(64), realtime_ns=now, hostname="reborn", machine_id="0123456789abcdef" * 2)
    assert client.receive(0)[1]["event"] == "hello"  # the earlier conversation over this port is over
    outside.settimeout(BOOT_PATIENCE)
    with contextlib.suppress(ConnectionResetError):
        assert outside.recv(1) == b""
    assert guest.shell(copy, "hostname; cat /etc/machine-id /run/hook") == f"reborn\n{'0123456789abcdef' * 2}\nran"
    assert int(guest.shell(copy, "date +%s")) >= now // 1_000_000_000
    attached = copy.open("attach", pid=pid)
    assert copy.event(attached)["pid"] == pid
    copy.call("signal", pid=pid, signal=9)
    assert copy.finish(attached).data == b"over\n"
    copy.call("restored", hostname="box", realtime_ns=time.time_ns())
    copy.close()
    outside.close()
    listener.close()


def test_a_still_disk_can_be_copied(guest: EmulatedGuest, files: GuestFiles, client: Client, tmp_path: Path) -> None:
    guest.shell(client, "echo kept > /root/kept")
    client.call("freeze", disk=True)
    clone_disk(guest.disk, tmp_path / "disk.img")
    client.call("thaw")
    guest.shell(client, "echo later > /root/kept; sync")
    copy = EmulatedGuest(tmp_path, files, GuestConfig("copy", "serial"))
    try:
        copy.await_ports()
        other = copy.dial()
        assert copy.shell(other, "cat /root/kept; hostname") == "kept\ncopy"
        assert "127.0.1.1 copy\n" in copy.shell(other, "cat /etc/hosts; echo")
        other.close()
    finally:
        copy.end()


def test_shutdown_ends_the_machine(guest: EmulatedGuest) -> None:
    last = guest.dial(4)
    assert last.call("shutdown", grace=0.1).result == {}
    assert guest.process.wait(EXIT_PATIENCE) == 0
    last.close()


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("agentenv.colour=red", "unknown parameter 'agentenv.colour=red'"),
        ("agentenv.ip=nonsense", "agentenv.ip must be INTERFACE,ADDRESS/PREFIX,GATEWAY"),
        ("agentenv.upper=paper", "agentenv.upper must be"),
    ],
)
def test_a_wrong_command_line_ends_the_machine_with_one_line(files: GuestFiles, tmp_path: Path, extra: str, said: str) -> None:
    broken = EmulatedGuest(tmp_path, files, GuestConfig("box", "serial"), (extra,))
    try:
        assert broken.process.wait(EXIT_PATIENCE) == 0
        assert said in broken.console
        assert broken.console.count("agentenv-agent: ") == 1
    finally:
        broken.end()


def test_files_in_memory_need_no_disk(files: GuestFiles, tmp_path: Path) -> None:
    light = EmulatedGuest(tmp_path, files, GuestConfig("light", "serial", tmpfs_upper=32 * MIB))
    try:
        light.await_ports()
        client = light.dial()
        assert "32768" in light.shell(client, "df -k / | cat")
        with pytest.raises(AgentError, match="ENOENT"):
            client.call("stat", path="/dev/vdb")
        client.close()
    finally:
        light.end()
