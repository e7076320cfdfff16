"""gVisor for an ordinary user: in a user namespace, with memory snapshots, without a network, and with root as the only user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from tests.machines import runsc_or_skip
from tests.node.test_unprivileged import USER, place, public_python

import agentenv
from agentenv.isolation.gvisor.runsc import VARIABLE, Runsc
from agentenv.isolation.gvisor.strays import end_strays

__all__ = ["place"]

SCRIPT = """
import asyncio, os, pathlib, shutil, sys
from agentenv.errors import InfrastructureError
from agentenv.guest import Command, Connection
from agentenv.guest.processes import start
from agentenv.isolation.contract import MachineSpec, Resources, RootFilesystem, Timeouts, Tree
from agentenv.isolation.gvisor.backend import GvisorBackend

def image(base):
    for name in ("proc", "sys", "dev", "tmp", "run", "usr", "etc", "root"):
        (base / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (base / name).symlink_to(f"usr/{name}")
    (base / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\\n")
    return RootFilesystem((Tree("/", "root", (base,)), Tree("/usr", "usr", (pathlib.Path("/usr"),))), "test", env={"PATH": "/usr/bin:/bin"})

async def shell(machine, line):
    connection = Connection.open(machine.dial())
    process = start(connection, Command(shell=line))
    await process.ended()
    connection.close()
    return (bytes(process.stdout) + bytes(process.stderr)).decode()

async def main(home):
    owner = home / "o1"
    owner.mkdir()
    backend = await GvisorBackend.open(owner)
    probe = await asyncio.to_thread(backend.probe)
    if not probe.usable:
        print("unavailable", probe.reason)
        return
    can = probe.capabilities
    assert (can.rootless, can.memory_snapshot, can.network, can.users) == (True, True, False, False), can
    root = image(home / "image")

    def spec(name, **wishes):
        (owner / name).mkdir()
        return MachineSpec(name, owner / name, root, "box", timeouts=Timeouts(120), **wishes)

    parent = await backend.start(spec("parent", resources=Resources(memory=200 << 20)))
    assert await shell(parent, "id -u; grep -c 'MemTotal: *204800 kB' /proc/meminfo; echo kept > /root/file; mkdir /usr/own") == "0\\n1\\n"
    agent = Connection.open(parent.dial())
    start(agent, Command(shell="n=0; while :; do n=$((n+1)); echo $n > /tmp/n; sleep 0.05; done", keep=True))
    while not await shell(parent, "cat /tmp/n 2>/dev/null"):
        continue
    await parent.pause()
    (owner / "checkpoint").mkdir()
    await parent.checkpoint(owner / "checkpoint")
    await parent.resume()
    wanted = spec("child", resources=Resources(memory=200 << 20))
    shutil.copytree(parent.directory / "upper", wanted.directory / "upper", symlinks=True)
    child = await backend.restore(wanted, owner / "checkpoint")
    told = await shell(child, "cat /root/file; a=$(cat /tmp/n); while [ \\"$(cat /tmp/n)\\" = \\"$a\\" ]; do :; done; echo counts")
    assert told == "kept\\ncounts\\n", told
    for machine in (parent, child):
        await machine.kill()
        await machine.freed()
    broken = spec("broken")
    missing = Tree("/", "root", (home / "none",))
    try:
        await backend.start(MachineSpec("broken", broken.directory, RootFilesystem((missing,), "test"), "box", timeouts=Timeouts(120)))
    except InfrastructureError as error:
        assert str(home / "none") in error.message, error
    else:
        raise AssertionError("it started from nothing")
    await backend.close()
    print("done", os.geteuid())

asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


@pytest.mark.soak
def test_a_machine_goes_on_from_memory_without_privilege(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runsc_or_skip(monkeypatch)
    python = public_python()
    shutil.copy(Runsc.find().path, place / "runsc")
    path = os.pathsep.join((str(Path(agentenv.__file__).parent.parent), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    home = place / "home"
    result = subprocess.run(
        [python, "-c", SCRIPT, str(home)],
        user=USER,
        group=USER,
        extra_groups=(),
        cwd=place,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": path, VARIABLE: str(place / "runsc")},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unavailable" in result.stdout:
        pytest.skip(f"no gVisor without privilege here: {result.stdout}")
    assert result.stdout.splitlines()[-1:] == [f"done {USER}"], result.stderr
    left = [entry for entry in Path("/proc").glob("[0-9]*") if _runs_in(entry, home)]
    assert left == []


def _runs_in(process: Path, home: Path) -> bool:
    try:
        return str(home).encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False  # it has ended


def test_strays_are_those_that_name_the_directory(tmp_path: Path) -> None:
    def waiting(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sh", "-c", "read _", "sh", f"--root={tmp_path / name}"], stdin=subprocess.PIPE)

    with waiting("a") as mine, waiting("b") as kept:
        end_strays(tmp_path / "a")
        assert mine.wait() == -9
        assert kept.poll() is None
        kept.kill()
