"""A machine in the slots of the network pool: its interface is the slot's tap, in a clone that of another slot."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.isolation.firecracker.conftest import open_yard
from tests.isolation.firecracker.machines import MEMORY, VmYard, counts_beyond, find_programs, first_count
from tests.node.network_lab import Lab, needs_root, owner, run

from agentenv.isolation.contract import Network
from agentenv.isolation.firecracker.api import RateLimiter, TokenBucket
from agentenv.isolation.firecracker.snapshot import read_facts
from agentenv.isolation.firecracker.vm import Boot, Limits, Vm
from agentenv.node.network import NetworkPool

pytestmark = needs_root


async def booted(yard: VmYard, network: Network) -> Vm:
    vmm = await yard.launcher.launch(network)
    limit = RateLimiter(bandwidth=TokenBucket(1 << 20, 100))
    return await Vm.boot(vmm, yard.release, Boot(yard.kernel, "", MEMORY, drives=yard.drives(), limits=Limits(network=limit)))


def holds_tap(vm: Vm) -> bool:
    """Whether the monitor has the tun device open."""
    descriptors = Path(f"/proc/{vm.vmm.monitor.pid}/fd")
    return any(os.readlink(entry).endswith("/net/tun") for entry in descriptors.iterdir())  # noqa: PTH115 - of one that is gone


def network_of(vm: Vm) -> int:
    return Path(f"/proc/{vm.vmm.monitor.pid}/ns/net").stat().st_ino


def test_each_clone_has_the_tap_of_its_own_slot(tmp_path: Path) -> None:
    find_programs()

    async def scenario(lab: Lab) -> None:
        pool = NetworkPool(lab.directory, owner(), size=0, host=lab.host)
        slots = [await pool.acquire(), await pool.acquire()]
        networks = [Network(True, slot.netns, slot.address, slot.nameservers) for slot in slots]
        async for yard in open_yard(tmp_path, jailed=True):
            parent = await booted(yard, networks[0])
            await counts_beyond(parent, 1)
            await parent.pause()
            checkpoint = await yard.checkpoint(parent)
            facts = read_facts(checkpoint, yard.release)
            assert facts.network
            vmm = await yard.launcher.launch(networks[1])
            child = await Vm.load(vmm, yard.release, checkpoint, facts, yard.drives())
            assert await first_count(child) > 0
            for vm, slot in ((parent, slots[0]), (child, slots[1])):
                assert await asyncio.to_thread(holds_tap, vm)
                assert network_of(vm) == slot.netns.stat().st_ino
                assert "LOWER_UP" in lab.tell("ip", "-n", slot.netns.name, "link", "show", "tap0")
            await child.limit(Limits())
            await asyncio.gather(parent.kill(), child.kill())
            assert yard.leftovers() == []
        await pool.close()

    run(tmp_path, scenario)
