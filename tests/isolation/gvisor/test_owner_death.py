"""An owner that is killed leaves nothing once the next one has looked, whatever state its sandboxes were in."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.isolation.gvisor.sandboxes import GvisorYard, mounts_below, processes_below

from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.node import Node
from agentenv.node.records import SandboxRequest

OWNER = """
import asyncio, sys
from pathlib import Path
from agentenv.node import Node
from agentenv.node.records import SandboxRequest

async def main(home: Path, paused: bool) -> None:
    node = await Node.open(home)
    sandbox = await node.create(SandboxRequest(isolation="gvisor"))
    if paused:
        await sandbox.pause()
    print(node.owner.id, sandbox.machine.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2] == "paused"))
"""


def killed_owner(home: Path, state: str) -> tuple[str, int]:
    """Who had a sandbox in that state and was killed, and a descriptor of the sandbox's kernel."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", OWNER, str(home), state], stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        owner_id, pid = owner.stdout.readline().split()
        sandbox = os.pidfd_open(int(pid))
        owner.send_signal(signal.SIGKILL)
    return owner_id, sandbox


@pytest.mark.parametrize("state", ["running", "paused"])
async def test_nothing_is_left_of_a_killed_owner(yard: GvisorYard, tmp_path: Path, state: str) -> None:
    home = tmp_path / "home"
    owner_id, sandbox = await asyncio.to_thread(killed_owner, home, state)
    async with await Node.open(home) as node:
        assert owner_id not in [path.name for path in (home / "owners").iterdir()]
        assert not [name for name in CgroupTree.discover().names() if owner_id in name]
        assert select.select([sandbox], [], [], 0)[0]
        assert processes_below(home / "owners" / owner_id) == []
        assert mounts_below(home / "owners" / owner_id) == []
        again = await node.create(SandboxRequest(isolation="gvisor"))
        assert again.backend == "gvisor"
    os.close(sandbox)


async def test_a_running_sandbox_ends_with_its_owner_by_itself(yard: GvisorYard, tmp_path: Path) -> None:
    _, sandbox = await asyncio.to_thread(killed_owner, tmp_path / "home", "running")
    assert await asyncio.to_thread(select.select, [sandbox], [], [], 30) != ([], [], [])
    os.close(sandbox)
