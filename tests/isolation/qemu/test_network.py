"""A machine reaches through its slot's network what it may, and a copy of it in another slot does so with the same address."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from tests.isolation.qemu.machines import Machines, shell
from tests.isolation.vm.emulated import plain
from tests.machines import obtain_or_skip, shared_store, small_root
from tests.node.network_lab import HOST, METADATA, PORT, PUBLIC, Lab, needs_root, owner, run

from agentenv.errors import CapabilityError
from agentenv.isolation.artefacts.store import DIRECTORY_VARIABLE
from agentenv.isolation.contract import Network
from agentenv.isolation.qemu.backend import QemuBackend
from agentenv.isolation.qemu.machine import QemuMachine
from agentenv.node.network import NetworkPool
from agentenv.node.network_slots import NetworkSlot

pytestmark = [needs_root, pytest.mark.soak, pytest.mark.timeout(300)]


def network(slot: NetworkSlot) -> Network:
    return Network(True, slot.netns, slot.address, slot.nameservers)


async def ask(machine: QemuMachine, address: str) -> str:
    return (await shell(machine, f"bash -c 'exec 3<>/dev/tcp/{address}/{PORT} && cat <&3' 2>&1")).strip().removeprefix("::ffff:")


def test_a_machine_and_its_copy_reach_the_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obtain_or_skip("qemu")
    obtain_or_skip("kernel")
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(shared_store().directory))
    place = tmp_path / f"o{secrets.token_hex(5)}"
    place.mkdir()
    root = plain(small_root(tmp_path / "root"))

    async def scenario(lab: Lab) -> None:
        pool = NetworkPool(lab.directory, owner(), size=0, host=lab.host)
        slot, other = await pool.acquire(), await pool.acquire()
        backend = await QemuBackend.open(place)
        machines = Machines(place, backend, root)
        try:
            machine = await backend.start(machines.spec(network=network(slot)))
            assert await ask(machine, PUBLIC) == HOST
            for forbidden in (slot.gateway, other.address, METADATA):
                assert "refused" in await ask(machine, forbidden)
            written = await machines.written_down(machine, "written")
            spec = machines.spec(disk=written / "disk.img", network=network(other))
            copy = await backend.restore(spec, written / "memory")
            assert await ask(copy, PUBLIC) == HOST
            assert await ask(machine, PUBLIC) == HOST
            without = machines.spec(disk=written / "disk.img")
            with pytest.raises(CapabilityError, match="has a network interface"):
                await backend.restore(replace(without, network=Network()), written / "memory")
        finally:
            await backend.close()
            await pool.close()

    run(tmp_path, scenario)
