"""Monitors' processes, with small programs in the place of monitors."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import InfrastructureError
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.vm.process import KEPT_OUTPUT, Ended, Warden

SLEEP = ("/bin/sleep", "1000")


@pytest.fixture
def warden() -> Iterator[Warden]:
    opened = Warden.open()
    yield opened
    opened.close()


async def test_output_and_exit_code_are_kept(warden: Warden) -> None:
    monitor = warden.spawn(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"])
    assert await monitor.wait() == Ended(3, None)
    assert monitor.output == "out\nerr\n"
    assert str(monitor.ended) == "ended with status 3"


async def test_only_the_last_of_much_output_is_kept(warden: Warden) -> None:
    monitor = warden.spawn(["/bin/sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x; echo the end"])
    await monitor.wait()
    assert len(monitor.output) == KEPT_OUTPUT
    assert monitor.output.endswith("xxx" + "the end\n")


async def test_kill_is_idempotent(warden: Warden) -> None:
    monitor = warden.spawn(SLEEP)
    assert monitor.ended is None
    assert await monitor.end() == Ended(None, signal.SIGKILL)
    monitor.kill()
    assert str(await monitor.end()) == "was ended by SIGKILL"
    with pytest.raises(ProcessLookupError):
        os.kill(monitor.pid, 0)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


async def test_it_inherits_what_it_was_given_and_nothing_else(warden: Warden, pipe: tuple[int, int]) -> None:
    os.set_inheritable(pipe[0], True)
    monitor = warden.spawn(["/bin/ls", "/proc/self/fd"], descriptors=[pipe[1]])
    await monitor.wait()
    assert {int(number) for number in monitor.output.split()} == {0, 1, 2, 3, pipe[1]}  # 3: the directory that `ls` reads


async def test_its_signals_are_as_a_program_expects_them(warden: Warden) -> None:
    monitor = warden.spawn(["/bin/grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"])
    await monitor.wait()
    assert monitor.output == f"SigBlk:\t{0:016x}\nSigIgn:\t{0:016x}\n"


async def test_who_waits_for_output_is_told(warden: Warden) -> None:
    monitor = warden.spawn(["/bin/sh", "-c", "echo first; sleep 1000"])
    while "first" not in monitor.output:
        await monitor.more()
    monitor.kill()
    while monitor.ended is None:
        await monitor.more()
    await monitor.more()  # at once: there is nothing to wait for any more
    assert str(monitor.ended) == "was ended by SIGKILL"


async def test_it_works_in_its_directory(warden: Warden, tmp_path: Path) -> None:
    monitor = warden.spawn(["/bin/readlink", "/proc/self/cwd"], cwd=tmp_path)
    await monitor.wait()
    assert monitor.output.strip() == str(tmp_path)


async def test_it_enters_its_cgroup(warden: Warden) -> None:
    group = CgroupTree.discover().create(f"agentenv-test-{os.getpid()}.process")
    try:
        monitor = warden.spawn(["/bin/cat", "/proc/self/cgroup"], groups=group.entrances)
        await monitor.wait()
        assert monitor.output.count(f"/{group.name}") == len(group.entrances)
    finally:
        group.remove()


@pytest.fixture
def netns() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root makes network namespaces")
    name = f"agentenv-test-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield Path("/run/netns", name)
    subprocess.run(["ip", "netns", "del", name], check=True)


async def test_it_enters_its_network_namespace(warden: Warden, netns: Path) -> None:
    monitor = warden.spawn(["/bin/readlink", "/proc/self/ns/net"], netns=netns)
    await monitor.wait()
    assert monitor.output.strip() == f"net:[{os.stat(netns).st_ino}]"  # noqa: PTH116 - a call that does not block


@pytest.mark.parametrize(
    ("options", "command", "said"),
    [
        ({"netns": Path("/nowhere/net")}, SLEEP, "entering the network namespace /nowhere/net: No such file or directory"),
        ({"cwd": Path("/nowhere")}, SLEEP, "entering the directory /nowhere: No such file or directory"),
        ({"groups": [Path("/nowhere/cgroup.procs")]}, SLEEP, "entering the cgroup /nowhere/cgroup.procs: No such file or directory"),
        ({}, ("/nowhere/qemu",), "starting /nowhere/qemu: No such file or directory"),
    ],
)
async def test_what_cannot_be_entered_is_said(warden: Warden, options: dict[str, object], command: tuple[str, ...], said: str) -> None:
    monitor = warden.spawn(command, **options)  # type: ignore[arg-type]
    assert await monitor.wait() == Ended(125, None)
    assert monitor.output == f"agentenv-launch: {said}\n"


async def test_they_end_with_the_warden() -> None:
    warden = Warden.open()
    monitor = warden.spawn(SLEEP)
    warden.close()
    warden.close()
    assert await monitor.wait() == Ended(None, signal.SIGKILL)


async def test_nothing_is_started_without_a_warden() -> None:
    warden = Warden.open()
    warden.close()
    with pytest.raises(InfrastructureError, match="warden of virtual machines has ended"):
        warden.spawn(SLEEP)


OWNER = """
import asyncio, os
from agentenv.isolation.vm.process import Warden

async def own():
    warden = Warden.open()
    monitors = [warden.spawn(("/bin/sleep", "1000")) for _ in range(3)]
    print(*(monitor.pid for monitor in monitors), flush=True)
    await monitors[0].wait()

asyncio.run(own())
"""


def test_monitors_end_with_their_owner_however_it_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pidfds = [os.pidfd_open(int(pid)) for pid in owner.stdout.readline().split()]
        owner.kill()
    for pidfd in pidfds:
        # Not our children: the descriptor becomes readable when they have ended.
        assert _ends(pidfd)
        os.close(pidfd)


def _ends(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(10_000))


PUNCH = """
import ctypes, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
punched = ctypes.CDLL(None, use_errno=True).fallocate64(file, 3, ctypes.c_int64(0), ctypes.c_int64(4096))
grown = ctypes.CDLL(None, use_errno=True).fallocate64(file, 0, ctypes.c_int64(0), ctypes.c_int64(16384))
print(punched, grown)
print(open("/proc/self/status").read())
"""


@pytest.mark.parametrize("whole", [False, True])
async def test_it_can_be_kept_from_punching_holes(warden: Warden, tmp_path: Path, whole: bool) -> None:
    file = tmp_path / "memory"
    file.write_bytes(b"x" * 8192)
    monitor = warden.spawn([sys.executable, "-c", PUNCH, str(file)], keeps_files_whole=whole, small_pages=whole)
    await monitor.wait()
    assert monitor.output.startswith("0 0\n"), monitor.output
    content = file.read_bytes()
    assert len(content) == 16384
    assert content[:8192] == (b"x" * 8192 if whole else bytes(4096) + b"x" * 4096)
    assert f"THP_enabled:\t{0 if whole else 1}" in monitor.output
