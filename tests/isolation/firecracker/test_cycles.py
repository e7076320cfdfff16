"""Random chains of checkpoints and restores: the counter in a machine's memory is always the one of that moment."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.conditions import more_in_soak
from tests.isolation.firecracker.machines import MEMORY, VmYard, counted, counts_beyond, first_count

from agentenv.isolation.firecracker.vm import Vm
from agentenv.isolation.vm import memory_layers as memory

COUNTER = 0x201000
"""Where the tiny guest counts (guest.S)."""


@dataclass
class Walk:
    """One machine at a time, and all checkpoints that were taken on the way, each with the count that had been printed then."""

    yard: VmYard
    vm: Vm
    choice: random.Random
    kept: list[tuple[Path, int]] = field(default_factory=list)
    last: Path | None = None

    async def go_on(self) -> None:
        await counts_beyond(self.vm, counted(self.vm))

    async def write_down(self) -> None:
        await self.vm.pause()
        self.last = await self.yard.checkpoint(self.vm, self.choice.choice((self.last, None)))
        self.kept.append((self.last, counted(self.vm)))
        await self.vm.resume()

    async def go_back(self) -> None:
        if not self.kept:
            return
        checkpoint, reached = self.choice.choice(self.kept)
        await self.vm.kill()
        self.vm = await self.yard.load(checkpoint)
        assert reached <= await first_count(self.vm) <= reached + 2
        self.last = checkpoint

    def check(self) -> None:
        """Whatever was written down in whatever layers, the counter in it is that of its moment."""
        for checkpoint, reached in self.kept:
            with memory.whole(checkpoint, MEMORY << 20).open("rb") as file:
                file.seek(COUNTER)
                assert reached <= int.from_bytes(file.read(8), "little") <= reached + 1


@pytest.mark.parametrize(("seed", "steps"), more_in_soak([(1, 12)], [(seed, 50) for seed in range(2, 12)]))
async def test_any_way_through_checkpoints_keeps_the_count(vms: VmYard, seed: int, steps: int) -> None:
    vm = await vms.boot()
    await counts_beyond(vm, 1)
    walk = Walk(vms, vm, random.Random(seed))
    for _ in range(steps):
        await walk.choice.choice((walk.go_on, walk.write_down, walk.write_down, walk.go_back))()
    walk.check()
    assert walk.kept
    await walk.vm.kill()
    assert vms.leftovers() == []
