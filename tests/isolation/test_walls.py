"""What a sandbox of the namespace backend can see and do, asked from inside."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from tests.isolation.sandboxes import MIB, Yard, shell

from agentenv.isolation.contract import Resources
from agentenv.isolation.namespace.machine import NamespaceMachine

PYTHON = "/usr/bin/python3"
CALL = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
result = libc.syscall(*[ctypes.c_ulong(int(word)) for word in sys.argv[1:]])
print(errno.errorcode.get(ctypes.get_errno(), "?") if result == -1 else "allowed")
"""

needs_python = pytest.mark.skipif(not Path(PYTHON).exists(), reason="the machine's /usr has no python3 to make system calls with")


async def call(machine: NamespaceMachine, *numbers: int) -> str:
    """Makes one system call in the sandbox; "allowed" or the errno's name."""
    return (await shell(machine, f"{PYTHON} -c '{CALL}' {' '.join(map(str, numbers))}")).strip()


async def test_no_path_of_the_host_shows(machine: NamespaceMachine, yard: Yard) -> None:
    mounts = await shell(machine, "cat /proc/self/mountinfo /proc/mounts")
    assert " - overlay " in mounts
    for secret in (str(yard.directory), yard.directory.name, str(yard.image.trees[0].lowers[0]), "/home", "ext4"):
        assert secret not in mounts


async def test_the_agent_cannot_be_looked_into(machine: NamespaceMachine) -> None:
    answers = await shell(
        machine, "for name in exe cwd root fd/3; do readlink /proc/1/$name || echo hidden; done; cat /proc/1/environ /proc/1/maps"
    )
    assert answers.count("hidden") == 4
    assert answers.count("ermission denied") == 2


async def test_descriptors_are_the_sandboxes_own(machine: NamespaceMachine) -> None:
    names = (await shell(machine, "ls /proc/self/fd")).split()
    assert set(names) <= {"0", "1", "2", "3"}  # 3 is the directory that ls reads


def _descriptors(pid: int) -> set[str]:
    """What the descriptors of a process of the host lead to."""
    return {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}  # noqa: PTH115


async def test_the_agent_has_no_descriptor_of_the_launcher(machine: NamespaceMachine, yard: Yard) -> None:
    launchers = _descriptors(yard.backend._launcher._process.pid) - {"/dev/null"}
    assert {name for name in _descriptors(machine.pid) & launchers if name.startswith("socket:")} == set()
    assert str(yard.directory) not in " ".join(_descriptors(machine.pid))


async def test_cgroups_begin_at_the_sandbox(machine: NamespaceMachine) -> None:
    groups = await shell(machine, "cat /proc/self/cgroup")
    assert all(line.endswith(":/") for line in groups.splitlines() if ":cpuset:" not in line)
    assert machine.id not in groups


async def test_names_and_processes_are_its_own(machine: NamespaceMachine) -> None:
    assert (await shell(machine, "hostname || cat /proc/sys/kernel/hostname")).strip() == f"box-{machine.id}"
    processes = (await shell(machine, "ls /proc | grep -c '^[0-9]*$'")).strip()
    assert int(processes) < 8


async def test_environment_is_clean(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_OWNER", "leak")
    machine = await yard.backend.start(yard.spec(env={"GIVEN": "yes"}))
    environment = await shell(machine, "env")
    assert "GIVEN=yes" in environment
    assert "SECRET" not in environment


async def test_only_loopback(machine: NamespaceMachine) -> None:
    interfaces = await shell(machine, "cat /proc/net/dev")
    assert [line.split(":")[0].strip() for line in interfaces.splitlines()[2:]] == ["lo"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "refused" in await shell(machine, f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'")


@needs_python
async def test_loopback_is_up(machine: NamespaceMachine) -> None:
    script = 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(socket.create_connection(s.getsockname()) and "connected")'
    assert "connected" in await shell(machine, f"{PYTHON} -c '{script}'")


async def test_devices_are_few(machine: NamespaceMachine) -> None:
    names = set((await shell(machine, "ls /dev")).split())
    assert names == {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "fd", "stdin", "stdout", "stderr", "shm"}
    assert (await shell(machine, "head -c 4 /dev/urandom | wc -c; echo gone > /dev/null && echo ok")).split() == ["4", "ok"]
    assert "ermitted" in await shell(machine, "mknod /tmp/disk b 8 0")


async def test_system_directory_holds_only_processors(machine: NamespaceMachine) -> None:
    assert (await shell(machine, "find /sys -type l -o -type f | sort")).split() == [
        f"/sys/devices/system/cpu/{name}" for name in ("online", "possible", "present")
    ]


HIDDEN = ("/proc/kallsyms", "/proc/timer_list", "/proc/keys", "/proc/kmsg", "/proc/sysrq-trigger", "/proc/kcore")


@pytest.mark.parametrize("path", [path for path in HIDDEN if Path(path).exists()])
async def test_kernel_files_are_hidden(machine: NamespaceMachine, path: str) -> None:
    assert (await shell(machine, f"cat {path} | wc -c")).split()[-1] == "0"


@pytest.mark.parametrize("path", ["/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/sys/x", "/dev/x"])
async def test_kernel_settings_are_read_only(machine: NamespaceMachine, path: str) -> None:
    answer = await shell(machine, f"echo 1 > {path}")
    assert "ead-only" in answer or "denied" in answer


async def test_few_capabilities_and_no_way_to_more(machine: NamespaceMachine) -> None:
    status = dict(line.split(":\t", 1) for line in (await shell(machine, "cat /proc/self/status")).splitlines() if ":\t" in line)
    kept = sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7, 10))
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {kept}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@needs_python
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers below are those of x86-64")
@pytest.mark.parametrize(
    ("numbers", "answer"),
    [
        ((165, 0, 0, 0, 0, 0), "EPERM"),  # mount
        ((272, 0x10000000), "EPERM"),  # unshare(CLONE_NEWUSER)
        ((272, 0x80), "EPERM"),  # unshare(CLONE_NEWTIME)
        ((272, 0x400), "allowed"),  # unshare(CLONE_FILES)
        ((308, 3, 0), "EPERM"),  # setns
        ((56, 0x10000011, 0, 0, 0, 0), "EPERM"),  # clone(CLONE_NEWUSER | SIGCHLD)
        ((435, 0, 0), "ENOSYS"),  # clone3: the C library falls back to clone
        ((321, 0, 0, 0), "EPERM"),  # bpf
        ((425, 1, 0), "EPERM"),  # io_uring_setup
        ((298, 0, 0, 0, 0, 0), "EPERM"),  # perf_event_open
        ((323, 0), "EPERM"),  # userfaultfd
        ((250, 0, 0), "EPERM"),  # keyctl
        ((246, 0, 0, 0, 0), "EPERM"),  # kexec_load
        ((175, 0, 0, 0), "EPERM"),  # init_module
        ((169, 0, 0, 0, 0), "EPERM"),  # reboot
        ((170, 0, 0), "EPERM"),  # sethostname
        ((41, 40, 1, 0), "EAFNOSUPPORT"),  # socket(AF_VSOCK)
        ((41, 17, 3, 0), "EAFNOSUPPORT"),  # socket(AF_PACKET)
        ((41, 38, 5, 0), "EAFNOSUPPORT"),  # socket(AF_ALG)
        ((41, 2, 1, 0), "allowed"),  # socket(AF_INET)
        ((135, 0xFFFFFFFF), "allowed"),  # personality: asking
        ((135, 0x0400000), "EPERM"),  # personality(READ_IMPLIES_EXEC)
        ((5000,), "ENOSYS"),  # a call of the future
    ],
)
async def test_system_calls(machine: NamespaceMachine, numbers: tuple[int, ...], answer: str) -> None:
    assert await call(machine, *numbers) == answer


@needs_python
async def test_threads_and_processes_work(machine: NamespaceMachine) -> None:
    script = (
        "import subprocess, threading; t = threading.Thread(target=print, args=(1,)); t.start(); t.join(); print(subprocess.call('true'))"
    )
    assert (await shell(machine, f'{PYTHON} -c "{script}"')).split() == ["1", "0"]


async def test_limits_are_shown(yard: Yard) -> None:
    machine = await yard.backend.start(yard.spec(resources=Resources(cpu=1, memory=300 * MIB)))
    answers = await shell(
        machine, "nproc; nproc --all; grep -c ^processor /proc/cpuinfo; grep MemTotal /proc/meminfo; cat /sys/devices/system/cpu/online"
    )
    assert answers.split() == ["1", "1", "1", "MemTotal:", str(300 * 1024), "kB", "0"]


async def test_temporary_file_systems_have_limits(yard: Yard) -> None:
    machine = await yard.backend.start(yard.spec(resources=Resources(memory=64 * MIB)))
    sizes = (await shell(machine, "for place in /tmp /dev/shm /run; do stat -f -c '%b %S' $place; done")).splitlines()
    assert [int(blocks) * int(size) for blocks, size in map(str.split, sizes)] == [32 * MIB] * 3
    assert (await shell(machine, "stat -c %a /tmp /dev/shm /run")).split() == ["1777", "1777", "755"]


async def test_writes_stay_in_the_upper(machine: NamespaceMachine, yard: Yard) -> None:
    await shell(machine, "echo own > /etc/own; echo own > /usr/own; rm /usr/bin/env")
    upper = yard.directory / machine.id / "upper"
    assert {(upper / name).read_text() for name in ("root/etc/own", "usr/own")} == {"own\n"}
    assert [os.access(name, os.F_OK) for name in ("/etc/own", "/usr/own", "/usr/bin/env")] == [False, False, True]


async def test_neighbours_do_not_see_each_other(yard: Yard) -> None:
    one, other = await yard.backend.start(yard.spec()), await yard.backend.start(yard.spec())
    await shell(one, "echo secret > /tmp/x; echo secret > /dev/shm/x; echo secret > /etc/x; (sleep 100 & ) ")
    assert "secret" not in await shell(other, "cat /tmp/x /dev/shm/x /etc/x; ls /proc")
    namespaces = [
        json.dumps((await shell(each, "for n in pid mnt net ipc uts cgroup; do readlink /proc/self/ns/$n; done")).split())
        for each in (one, other)
    ]
    assert not set(json.loads(namespaces[0])) & set(json.loads(namespaces[1]))


async def test_image_whose_directories_are_missing_or_links(yard: Yard) -> None:
    base = yard.image.trees[0].lowers[0]
    for name in ("tmp", "run", "sys"):
        (base / name).rmdir()
    (base / "inner").mkdir()
    (base / "tmp").symlink_to("../../../../../../inner")  # links are followed from the sandbox's root, not the host's
    machine = await yard.backend.start(yard.spec())
    assert "tmpfs" in await shell(machine, "grep ' /inner ' /proc/mounts")
    assert (await shell(machine, "ls /sys /run")).split() == ["/run:", "agentenv", "/sys:", "devices"]
