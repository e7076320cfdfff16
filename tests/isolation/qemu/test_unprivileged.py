"""The QEMU backend as a user without any privilege: a machine of its own, its memory, copies of it; and what it says it has lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.isolation.unprivileged import place, python_for_nobody, run_as_nobody
from tests.machines import obtain_or_skip, shared_store

__all__ = ["place"]  # a fixture

SCRIPT = """
import asyncio, json, os, sys
from pathlib import Path
from tests.isolation.qemu.machines import COUNTER, Machines, counts_on, shell
from tests.isolation.vm.emulated import plain
from tests.machines import small_root
from agentenv.guest import Command, Connection
from agentenv.guest.processes import start
from agentenv.isolation.qemu.backend import QemuBackend

async def main(directory: Path) -> dict[str, object]:
    os.environ["AGENTENV_ARTEFACTS"] = str(directory / "artefacts")
    owner = directory / "owner"
    owner.mkdir()
    backend = await QemuBackend.open(owner)
    probe = backend.probe()
    machines = Machines(owner, backend, plain(small_root(directory / "root")))
    first = await machines.start()
    agent = Connection.open(first.dial())
    start(agent, Command(argv=("/bin/bash", "-c", COUNTER), keep=True))
    before = await counts_on(first)
    seen = {"user": os.geteuid(), "identity": await shell(first, "hostname; stat -c %u /root; echo x > /root/x; ls -A /root")}
    written = await machines.written_down(first, "written")
    copies = [await machines.copy(written) for _ in range(2)]
    seen["copies"] = [await shell(copy, "hostname; cat /root/x") for copy in copies]
    seen["go on"] = [await counts_on(copy) >= before for copy in (first, *copies)]
    usage = await first.usage()
    seen["usage"] = [usage.memory, usage.cpu_seconds, usage.processes]
    agent.close()
    ended = await first.kill()
    await backend.close()
    left = [path.name for path in owner.rglob("port*")]
    return {**seen, "usable": probe.usable, "can": probe.capabilities.rootless, "network": probe.capabilities.network,
            "lost": probe.capabilities.lost, "ended": ended.reason, "left": left}

print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
"""


@pytest.mark.soak
def test_a_machine_and_its_copies_work_without_root(place: Path) -> None:
    obtain_or_skip("qemu")
    kernel = obtain_or_skip("kernel")
    artefacts = place / "artefacts"
    artefacts.mkdir()
    (artefacts / "kernel").symlink_to(shared_store().directory / "kernel")
    if os.geteuid() == 0:
        os.chown(artefacts, place.stat().st_uid, place.stat().st_gid)
    assert kernel.is_file()
    python = python_for_nobody(place)
    if python is None:
        pytest.skip("another user can run no Python with this package here")
    (place / "script.py").write_text(SCRIPT)
    done = run_as_nobody(python, [str(place / "script.py"), str(place)], place)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["user"] != 0
    assert seen["identity"].split() == ["box-q1", "0", "x"]
    assert [told.split() for told in seen["copies"]] == [["box-q2", "x"], ["box-q3", "x"]]
    assert seen["go on"] == [True] * 3
    assert seen["usage"][2] is not None
    assert (seen["usable"], seen["can"], seen["network"], seen["ended"], seen["left"]) == (True, True, False, "it was killed", [])
    assert any("network" in told for told in seen["lost"])
