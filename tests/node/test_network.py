"""The pool and its policy on a real kernel, in network namespaces of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.node.network_lab import HOST, METADATA, PORT, PRIVATE, PUBLIC, Lab, needs_root, owner, run

from agentenv.egress import nftables
from agentenv.egress.netns import inside
from agentenv.errors import CapabilityError, InfrastructureError, InvalidState
from agentenv.node import commands, network, network_host, network_slots
from agentenv.node.network import NetworkPool, NetworkSlot
from agentenv.node.network_host import NetworkHost, NetworkProbe
from agentenv.node.network_policy import host_nameservers


class Events:
    """Keeps what was emitted and wakes who waits for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, object]]] = []
        self.arrived = asyncio.Event()

    def emit(self, event: str, **fields: object) -> None:
        self.seen.append((event, fields))
        self.arrived.set()


def _pool(lab: Lab, size: int = 1, events: Events | None = None) -> NetworkPool:
    return NetworkPool(lab.directory, owner(), size=size, events=events, host=lab.host)


def _open_the_inner_wall(slot: NetworkSlot) -> None:
    """Takes the rules out of the namespace, so that only the host's stand."""
    inside(slot.netns, lambda: nftables.apply("flush ruleset"))


@needs_root
def test_the_world_is_reached_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab)
        slot, other = await pool.acquire(), await pool.acquire()
        servers = [lab.serve(None, slot.gateway, other.gateway, HOST), lab.serve(other.netns, other.address)]
        try:
            assert lab.ask(slot.netns, PUBLIC) == f"reached from {HOST}"
            for inner_wall in (True, False):
                if not inner_wall:
                    _open_the_inner_wall(slot)
                for forbidden in (slot.gateway, HOST, other.address, other.gateway, PRIVATE, METADATA):
                    assert lab.ask(slot.netns, forbidden) == "ECONNREFUSED", forbidden
                    assert lab.ask(slot.netns, forbidden, 53, "udp") in {"EPERM", "EHOSTUNREACH", "silence"}, forbidden
            assert lab.ask(slot.netns, PUBLIC) == f"reached from {HOST}"
            assert lab.ask(slot.netns, slot.address) == "ECONNREFUSED"
        finally:
            for server in servers:
                server.kill()
                server.communicate()
            await pool.close()
        assert lab.leftovers() == {}

    run(tmp_path, scenario)


@needs_root
def test_ipv6_and_false_senders_get_nowhere(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab)
        slot = await pool.acquire()
        lab.tell("ip", "addr", "add", "fd00:5::1/64", "dev", slot.interface, "nodad")
        lab.tell("ip", "-n", slot.netns.name, "addr", "add", "fd00:5::2/64", "dev", "eth0", "nodad")
        lab.tell("ip", "-n", slot.netns.name, "addr", "replace", "198.51.100.9/32", "dev", "lo")
        lab.tell("ip", "-n", slot.netns.name, "route", "add", PUBLIC, "via", slot.gateway, "src", "198.51.100.9")
        server = lab.serve()
        try:
            assert lab.ask(slot.netns, "fd00:5::1") == "silence"
            assert lab.ask(slot.netns, PUBLIC) == "silence"
        finally:
            server.kill()
            server.communicate()
            await pool.close()

    run(tmp_path, scenario)


@needs_root
@pytest.mark.skipif(not host_nameservers(), reason="this machine has no name server off loopback")
def test_the_hosts_name_servers_answer_on_their_port_only(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab)
        slot = await pool.acquire()
        assert slot.nameservers == host_nameservers()
        server = slot.nameservers[0]
        assert lab.ask(slot.netns, server, 53, "udp") == f"reached from {HOST}"
        assert lab.ask(slot.netns, server, 53, "tcp") == f"reached from {HOST}"
        if ipaddress.ip_address(server).is_private:
            assert lab.ask(slot.netns, server, PORT) == "ECONNREFUSED"
        await pool.close()

    run(tmp_path, scenario)


@needs_root
def test_slots_are_warm_fresh_and_thrown_away(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab, size=2)
        await pool.warm()
        first = await pool.acquire()
        await pool.warm()
        second = await pool.acquire()
        assert first.index != second.index
        assert first.address != second.address
        assert first.netns.exists()
        await pool.release(first)
        await pool.release(first)
        assert not first.netns.exists()
        assert first.interface not in lab.tell("ip", "-br", "link")
        third = await pool.acquire()
        assert third.index not in (first.index, second.index)
        await pool.close()
        await pool.close()
        assert lab.leftovers() == {}
        with pytest.raises(InvalidState, match="closed"):
            await pool.acquire()

    run(tmp_path, scenario)


@needs_root
def test_a_number_in_use_is_passed_over(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab, size=0)
        first = await pool.acquire()
        pool._next_index = first.index
        second = await pool.acquire()
        assert second.index == first.index + 1
        assert lab.ask(first.netns, PUBLIC) == f"reached from {HOST}"
        await pool.close()
        assert lab.leftovers() == {}

    run(tmp_path, scenario)


@needs_root
def test_two_owners_share_the_host_and_the_last_one_clears_up(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pools = [_pool(lab), _pool(lab)]
        slots = await asyncio.gather(*(pool.acquire() for pool in pools for _ in range(3)))
        assert len({slot.interface for slot in slots}) == 6
        await pools[0].close()
        assert lab.ask(slots[-1].netns, PUBLIC) == f"reached from {HOST}"
        await pools[1].close()
        assert lab.leftovers() == {}

    run(tmp_path, scenario)


@needs_root
def test_emptied_rules_come_back_with_the_next_slot(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab)
        slot = await pool.acquire()
        await pool.warm()
        lab.tell("nft", "flush", "ruleset")
        assert lab.ask(slot.netns, PRIVATE) == "ECONNREFUSED"
        await pool.acquire()
        await pool.warm()
        assert "agentenv" in lab.tell("nft", "list", "tables")
        await pool.close()

    run(tmp_path, scenario)


@needs_root
def test_a_host_that_forwards_already_goes_on_forwarding(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        lab.forward(True)
        pool = _pool(lab)
        await pool.acquire()
        await pool.close()
        assert lab.leftovers() == {"forwarding": "1"}

    run(tmp_path, scenario)


@needs_root
def test_a_range_that_the_host_uses_is_avoided(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        lab.tell("ip", "route", "add", "10.0.0.0/8", "via", "192.0.2.1")
        pool = _pool(lab)
        slot = await pool.acquire()
        assert slot.address.startswith("172.30.")
        assert lab.ask(slot.netns, PUBLIC) == f"reached from {HOST}"
        await pool.close()

    run(tmp_path, scenario)


@needs_root
def test_no_free_range_is_said(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        for network_ in ("10.0.0.0/8", "172.16.0.0/12", "198.18.0.0/15"):
            lab.tell("ip", "route", "add", network_, "via", "192.0.2.1")
        pool = _pool(lab)
        with pytest.raises(InfrastructureError, match="every address range for sandboxes overlaps a route"):
            await pool.acquire()
        await pool.close()
        assert lab.leftovers() == {}

    run(tmp_path, scenario)


_CRASHER = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = {path!r}
from agentenv.node.network import NetworkPool
from agentenv.node.network_host import NetworkHost
from agentenv.egress.policy import EgressPolicy

async def main():
    pool = NetworkPool(Path("/"), {owner!r}, size=1, host=NetworkHost(Path({state!r})))
    await pool.guard(await pool.acquire(), "sb1", EgressPolicy.of(allow=["10.0.0.0/8"]))
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@needs_root
def test_what_a_killed_owner_left_is_removed(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        program = _CRASHER.format(path=sys.path, owner=owner(), state=str(lab.directory / "state"))
        alive = _pool(lab, size=0)
        await alive.start()
        with lab.start(sys.executable, "-c", program) as crasher:
            await NetworkPool.reconcile(lab.directory, host=lab.host)
            assert {"namespaces", "links", "rules", "pools"} <= lab.leftovers().keys()
            assert "forward_aev" in nftables.ask("list ruleset")
            crasher.send_signal(signal.SIGKILL)
        await NetworkPool.reconcile(lab.directory, host=lab.host)
        # Others go on, and what is made next does not find a dead sandbox's rules.
        assert "forward_aev" not in nftables.ask("list ruleset")
        await alive.close()
        lab.wait_for_links_to_go()
        assert lab.leftovers() == {}

    run(tmp_path, scenario)


@needs_root
@pytest.mark.parametrize("step", range(1, 8))
def test_a_failure_at_any_step_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    async def scenario(lab: Lab) -> None:
        calls = 0
        run_tool, apply_rules = commands.run, nftables.apply

        def count() -> None:
            nonlocal calls
            calls += 1
            if calls == step:
                raise InfrastructureError("injected")

        async def failing(*argv: str, text: str = "", check: bool = True) -> commands.Output:
            count()
            return await run_tool(*argv, text=text, check=check)

        def refusing(text: str, *, check_only: bool = False) -> None:
            if not check_only:
                count()
            apply_rules(text, check_only=check_only)

        monkeypatch.setattr(commands, "run", failing)
        monkeypatch.setattr(nftables, "apply", refusing)
        pool = _pool(lab, size=0)
        with contextlib.suppress(InfrastructureError):
            await pool.acquire()
        assert calls >= step
        await pool.close()
        assert lab.leftovers() == {}

    run(tmp_path, scenario)


@needs_root
def test_a_pool_that_cannot_fill_backs_off_and_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab) -> None:
        async def refuse(*_: object) -> NetworkSlot:
            raise InfrastructureError("no more links.")

        monkeypatch.setattr(network_slots, "create", refuse)
        monkeypatch.setattr(network, "FIRST_RETRY", 0.01)
        events = Events()
        pool = _pool(lab, events=events)
        await pool.start()
        async with asyncio.timeout(30):
            while len(events.seen) < 3:
                events.arrived.clear()
                await events.arrived.wait()
        told = [fields["retry_seconds"] for event, fields in events.seen if event == "network.refill_failed"]
        assert told[:3] == [0.01, 0.02, 0.04]
        with pytest.raises(InfrastructureError, match="no more links"):
            await pool.acquire()
        await pool.close()
        assert lab.leftovers() == {}

    run(tmp_path, scenario)


@needs_root
def test_a_cancelled_acquire_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab, size=0)
        await pool.start()
        for turns in range(1, 12):
            task = asyncio.create_task(pool.acquire())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await pool.close()
        assert lab.leftovers() == {}

    run(tmp_path, scenario)


async def test_an_unusable_network_is_refused_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "probe", lambda: NetworkProbe(False, "no tools.", "Install them."))
    pool = NetworkPool(tmp_path, owner())
    with pytest.raises(CapabilityError, match=r"cannot have a network here: no tools\. Install them\."):
        await pool.acquire()
    await pool.close()


def test_without_root_the_probe_says_so_and_that_ports_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/sbin/{name}")
    found = network_host.probe()
    assert (found.usable, found.reason) == (False, "a network for sandboxes takes interfaces and rules of the host, which need root.")
    assert found.remedy == "Run as root. Published ports work all the same."


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    found = network_host.probe()
    assert found.reason == "ip and nft not found."


@needs_root
def test_the_kernel_takes_the_rules_and_other_walls_are_named(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        assert NetworkPool.probe().usable
        lab.tell("nft", "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }")
        assert any("ip filter FORWARD drops what it does not know" in note for note in NetworkPool.probe().notes)

    run(tmp_path, scenario)


async def test_reconciling_where_nothing_ever_was_does_nothing(tmp_path: Path) -> None:
    await NetworkPool.reconcile(tmp_path, ["o1"], host=network_host.NetworkHost(tmp_path / "absent"))
    assert not (tmp_path / "absent").exists()


async def test_a_cancelled_wait_for_the_machines_lock_gives_it_back(tmp_path: Path) -> None:
    host = NetworkHost(tmp_path / "state")

    async def enter() -> bool:
        async with host._exclusive():
            return True

    async with host._exclusive():
        waiting = asyncio.create_task(enter())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(30):
        assert await enter()
