"""Machines that boot a kernel do so in turn, and waiting for it costs nothing of the time that they have for it."""

from __future__ import annotations

import asyncio

import pytest
from tests.node.memory_doubles import RememberingBackend, RememberingMachine, born

from agentenv.errors import StartupTimeout
from agentenv.isolation.contract import MachineSpec, Timeouts
from agentenv.node import Node, SandboxRequest
from agentenv.node.starter import STARTS_PER_PROCESSOR


class Doorkeeper:
    """Lets the machines of a backend come up one by one."""

    def __init__(self, backend: RememberingBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.booting: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self._start = backend.start
        monkeypatch.setattr(backend, "start", self._wait)

    async def _wait(self, spec: MachineSpec) -> RememberingMachine:
        up = asyncio.Event()
        self.booting.put_nowait(up)
        await up.wait()
        return await self._start(spec)


@pytest.fixture
def door(remembering: RememberingBackend, monkeypatch: pytest.MonkeyPatch) -> Doorkeeper:
    return Doorkeeper(remembering, monkeypatch)


@pytest.fixture
def _one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentenv.node.starter.os.cpu_count", lambda: 1)


@pytest.mark.usefixtures("_one_processor")
@pytest.mark.parametrize("disk", [True], indirect=True)
async def test_one_boots_after_another_and_waiting_does_not_count(door: Doorkeeper, memory_node: Node, root_tree: str) -> None:
    first = asyncio.create_task(memory_node.create(SandboxRequest(image=root_tree)))
    up = await door.booting.get()
    waiting = [asyncio.create_task(memory_node.create(SandboxRequest(image=root_tree, timeouts=Timeouts(startup=1.0)))) for _ in range(2)]
    done, _ = await asyncio.wait(waiting, timeout=1.2)
    assert not done
    assert door.booting.empty()
    up.set()
    for _ in waiting:
        (await door.booting.get()).set()
    sandboxes = [await start for start in (first, *waiting)]
    assert [sandbox.state for sandbox in sandboxes] == ["running"] * 3
    assert "turn" in [stage.name for stage in sandboxes[-1].timings]


@pytest.mark.usefixtures("_one_processor")
async def test_machines_without_a_kernel_start_a_few_at_once_and_in_order(door: Doorkeeper, memory_node: Node, root_tree: str) -> None:
    count = 3 * STARTS_PER_PROCESSOR
    starts = [asyncio.create_task(memory_node.create(SandboxRequest(image=root_tree, metadata={"n": str(n)}))) for n in range(count)]
    for _ in range(count // STARTS_PER_PROCESSOR):
        together = [await door.booting.get() for _ in range(STARTS_PER_PROCESSOR)]
        assert door.booting.empty()
        for up in together:
            up.set()
    sandboxes = [await start for start in starts]
    waited = ["turn" in [stage.name for stage in sandbox.timings] for sandbox in sandboxes]
    assert waited == [False] * STARTS_PER_PROCESSOR + [True] * (count - STARTS_PER_PROCESSOR)
    born_in_order = sorted(sandboxes, key=lambda sandbox: sandbox.created)
    assert [sandbox.request.metadata["n"] for sandbox in born_in_order] == [str(n) for n in range(count)]


@pytest.mark.usefixtures("_one_processor")
@pytest.mark.parametrize("disk", [True], indirect=True)
async def test_one_that_does_not_come_up_gives_its_turn_away(door: Doorkeeper, memory_node: Node, root_tree: str) -> None:
    stuck = asyncio.create_task(memory_node.create(SandboxRequest(image=root_tree, timeouts=Timeouts(startup=0.05))))
    await door.booting.get()
    other = asyncio.create_task(memory_node.create(SandboxRequest(image=root_tree)))
    with pytest.raises(StartupTimeout) as caught:
        await stuck
    assert caught.value.stage == "backend"
    (await door.booting.get()).set()
    assert (await other).state == "running"


@pytest.mark.usefixtures("_one_processor")
@pytest.mark.parametrize("disk", [True], indirect=True)
async def test_what_goes_on_from_memory_waits_for_nobody(
    remembering: RememberingBackend, memory_node: Node, root_tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = await memory_node.create(SandboxRequest(image=root_tree))
    restore, both = remembering.restore, asyncio.Barrier(2)

    async def together(*arguments: object) -> RememberingMachine:
        await both.wait()
        return await restore(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(remembering, "restore", together)
    assert len(born(await parent.fork(2))) == 2
