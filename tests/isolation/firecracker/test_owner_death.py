"""The process that owns machines is killed: they end with it, and what is left of them is found by their owner's name."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from tests.isolation.firecracker.machines import find_programs
from tests.machines import shared_store

from agentenv.isolation.firecracker.counter import write_kernel
from agentenv.isolation.namespace.cgroups import CgroupTree

PATIENCE = 10_000
OWNER = """
import asyncio, sys
from pathlib import Path
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.firecracker.launcher import Launcher
from agentenv.isolation.firecracker.release import Programs
from agentenv.isolation.firecracker.vm import Boot, Vm
from agentenv.isolation.namespace.cgroups import CgroupTree

async def own(directory, store):
    programs = Programs.find(ArtefactStore.open(store), jailed=True)
    launcher = await Launcher.open(programs, CgroupTree.discover(), directory)
    vms = [await Vm.boot(await launcher.launch(), programs.release, Boot(directory / "kernel", "", 16)) for _ in range(2)]
    print(*(vm.vmm.monitor.pid for vm in vms), flush=True)
    await asyncio.sleep(1000)

asyncio.run(own(Path(sys.argv[1]), Path(sys.argv[2])))
"""


def test_machines_end_with_their_owner(tmp_path: Path) -> None:
    find_programs()
    directory = tmp_path / f"o{os.getpid()}"
    directory.mkdir()
    write_kernel(directory / "kernel")
    command = [sys.executable, "-c", OWNER, str(directory), str(shared_store().directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        monitors = [os.pidfd_open(int(pid)) for pid in owner.stdout.readline().split()]
        owner.send_signal(signal.SIGKILL)
    assert len(monitors) == 2
    for monitor in monitors:
        poller = select.poll()
        poller.register(monitor, select.POLLIN)
        assert poller.poll(PATIENCE), "a machine has outlived its owner"
        os.close(monitor)
    cgroups = CgroupTree.discover()
    left = cgroups.by_owner().get(directory.name, [])
    assert len(left) == 2
    for name in left:
        cgroups.remove(name)
    assert directory.name not in cgroups.by_owner()
