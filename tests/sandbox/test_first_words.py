"""What somebody tries first with a real machine: no image named, a file, a Python program that counts in its memory, a fork into three."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conditions import more_in_soak
from tests.machines import debian_or_skip, obtain_or_skip, runsc_or_skip, shared_cache
from tests.sandbox.conftest import real_node

from agentenv.isolation import probe_all
from agentenv.isolation.contract import Timeouts
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox

PATIENT = Timeouts(startup=240.0)
"""For machines without a processor that runs them, beside other tests."""

COUNTER = """
import itertools, os, pathlib, time
told, new = pathlib.Path("/root/word"), pathlib.Path("/tmp/count.new")
word = "nothing"
for number in itertools.count(1):
    if told.exists():
        word = told.read_text()
        told.unlink()
    new.write_text(f"{number} {word}")
    new.rename("/tmp/count")
    time.sleep(0.01)
"""


@pytest.fixture(params=more_in_soak(["gvisor"], ["qemu"]))
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend that can write memory down and works here."""
    name = str(request.param)
    if name == "qemu":
        obtain_or_skip("kernel")
        obtain_or_skip("qemu")
        debian_or_skip()
        monkeypatch.setenv("AGENTENV_ARTEFACTS", str(shared_cache() / "artefacts"))
    else:
        runsc_or_skip(monkeypatch)
    probe = next(probe for probe in probe_all() if probe.backend == name)
    if not probe.usable:
        pytest.skip(f"no {name} here: {probe.reason}")
    return name


@pytest.fixture
async def place(isolation: str, home: Path) -> AsyncIterator[Node]:
    """A node where the backend's default image is."""
    async with real_node(shared_cache() if isolation == "qemu" else home) as node:
        yield node


async def told(sandbox: AsyncSandbox) -> tuple[int, str]:
    """How far its counter has come, and the word that it holds in its memory."""
    result = await sandbox.commands.run("cat /tmp/count")
    number, _, word = result.stdout.partition(" ")
    return int(number or 0), word


async def test_three_children_go_on_counting_see_the_file_and_diverge(isolation: str, place: Node) -> None:
    async with await AsyncSandbox.create(isolation=isolation, node=place, timeouts=PATIENT) as parent:
        await parent.files.write("/root/file", "before the fork")
        await parent.commands.run(["python3", "-c", COUNTER], background=True)
        while (await told(parent))[0] < 5:
            continue
        at_least = (await told(parent))[0]
        children = [child for child in await parent.fork(3) if isinstance(child, AsyncSandbox)]
        assert len(children) == 3
        for name, child in zip("abc", children, strict=True):
            number, word = await told(child)
            assert number >= at_least
            assert word == "nothing"
            assert await child.files.read("/root/file") == "before the fork"
            await child.files.write("/root/word", name)
            await child.files.write("/root/file", f"of {name}")
        for name, child in zip("abc", children, strict=True):
            while (now := await told(child))[1] != name:
                assert now[1] == "nothing"
            assert await child.files.read("/root/file") == f"of {name}"
            await child.kill()
        assert (await told(parent))[1] == "nothing"
        assert await parent.files.read("/root/file") == "before the fork"


def test_a_loop_that_ends_with_its_sandbox_leaves_nothing_of_it(isolation: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_HOME", str(shared_cache() if isolation == "qemu" else home))

    async def use() -> str:
        async with await AsyncSandbox.create(isolation=isolation, timeouts=PATIENT) as sandbox:
            return sandbox.id

    identifier = asyncio.run(use())
    assert [name for name in CgroupTree.discover().names() if identifier in name] == []
    assert list((shared_cache() if isolation == "qemu" else home).glob(f"owners/*/{identifier}")) == []
