"""Sandboxes that go on from a machine that was booted before: they are as fresh, and as different, as if each had booted itself."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.machines import obtain_or_skip, shared_store, small_root

from agentenv.isolation import probe_all
from agentenv.isolation.contract import Resources, Timeouts
from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox

PATIENT = Timeouts(startup=240.0)
OWN = "hostname; cat /etc/machine-id /proc/sys/kernel/random/uuid"
SHARED = "cat /etc/passwd; echo $LIKE; ls -A /root; nproc; stat -c %a /tmp"


@pytest.fixture(params=["qemu", "firecracker"])
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A virtual machine that works here."""
    name = str(request.param)
    for artefact in ("kernel", name):
        obtain_or_skip(artefact)
    monkeypatch.setenv("AGENTENV_ARTEFACTS", str(shared_store().directory))
    found = next(probe for probe in probe_all() if probe.backend == name)
    if not found.usable:
        pytest.skip(f"no {name} here: {found.reason}")
    return name


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_later_ones_do_not_boot_and_have_nothing_of_the_first(isolation: str, node: Node, tmp_path: Path) -> None:
    image = f"dir:{small_root(tmp_path / 'root')}"

    async def start(env: dict[str, str]) -> AsyncSandbox:
        resources = Resources(memory=192 << 20, cpu=1, storage=256 << 20)
        return await AsyncSandbox.create(image, isolation=isolation, node=node, timeouts=PATIENT, resources=resources, env=env)

    first = await start({"ONLY": "the first's"})
    await first.files.write("/root/file", "the first's")
    others = await asyncio.gather(*(start({"LIKE": "all the others"}) for _ in range(3)))
    stages = [[stage.name for stage in sandbox.timings] for sandbox in (first, *others)]
    assert "blank" in stages[0]
    assert ["boot" in names for names in stages] == [True, False, False, False]
    own = [(await sandbox.commands.run(OWN)).stdout.split("\n") for sandbox in (first, *others)]
    assert [lines[0] for lines in own] == [sandbox.id for sandbox in (first, *others)]
    assert len({lines[1] for lines in own}) == len({lines[2] for lines in own}) == 4
    assert len({(await sandbox.commands.run(SHARED)).stdout for sandbox in others}) == 1
    for sandbox in others:
        assert (await sandbox.commands.run("echo $ONLY; ls -A /root")).stdout.split() == []
        asked = time.time()
        assert asked - 1 < float((await sandbox.commands.run("date +%s.%N")).stdout) < time.time() + 0.1
    # What is written down of one that goes on from a blank is whole all the same.
    snapshot = await others[0].snapshot()
    async with await AsyncSandbox.create(snapshot=snapshot.id, node=node, timeouts=PATIENT) as again:
        assert (await again.commands.run("cat /etc/machine-id")).stdout != own[1][1]
    for sandbox in (first, *others):
        await sandbox.kill()
