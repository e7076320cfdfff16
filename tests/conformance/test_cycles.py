"""The walk over random pauses, snapshots and rollbacks: fifty steps on each backend, and a model that notices what it should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conditions import needs_namespaces
from tests.conformance.conftest import Bench

from agentenv.conformance import open_subject
from agentenv.conformance.cycles import PLACE, Walk, random_cycles
from agentenv.isolation.conformance import CheckFailed, Verdict

CHANGES = (
    (f"echo new > {PLACE}/a", f"rm {PLACE}/a", "files differ: 'a' is"),
    (f"mkdir {PLACE}/d", f"rmdir {PLACE}/d", "files differ: 'd' is"),
    (f"ln -s elsewhere {PLACE}/link", f"rm {PLACE}/link", "files differ: 'link' is"),
    ("echo more > /etc/added", "rm /etc/added", "files outside of"),
)
"""What is done, how it is undone, and what is then told."""


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("backend", ["namespace", "gvisor", "qemu", "firecracker"])
def test_fifty_steps(bench: Callable[[str], Bench], backend: str, seed: int) -> None:
    chosen = bench(backend)
    chosen.subject.cycles, chosen.subject.seed = 50, seed
    outcome = chosen.run(random_cycles)
    assert outcome.verdict is Verdict.PASSED, f"{outcome.message}\n{outcome.traceback}"


@needs_namespaces
async def test_a_file_that_changes_behind_its_back_is_noticed(home: Path) -> None:
    async with open_subject("namespace") as subject:
        sandbox = await subject.create()
        walk = Walk(subject, sandbox, seed=3)
        await walk.begin()
        for line, undone, told in CHANGES:
            await sandbox.commands.run(line, check=True)
            with pytest.raises(CheckFailed, match=told):
                await walk.compare()
            await sandbox.commands.run(undone, check=True)
            await walk.compare()


@needs_namespaces
async def test_a_process_that_ends_and_a_number_that_changes_are_noticed(home: Path) -> None:
    async with open_subject("namespace") as subject:
        sandbox = await subject.create()
        walk = Walk(subject, sandbox, seed=3)
        await walk.begin()
        (resident,) = await sandbox.commands.list()
        state = walk.state
        assert state.resident is not None
        await state.resident.ask(sandbox, "add")
        with pytest.raises(CheckFailed, match="number in memory"):
            await walk.compare()
        handle = await sandbox.commands.connect(resident.pid)
        await handle.kill()
        await handle.wait()
        with pytest.raises(CheckFailed, match="commands"):
            await walk.compare()
