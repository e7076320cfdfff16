"""The tap of a virtual machine: a namespace in the guest's place reaches what a sandbox may, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.isolation.vm.cable import plugged_in
from tests.node.network_lab import HOST, METADATA, PORT, PRIVATE, PUBLIC, Lab, needs_root, owner, run

from agentenv.isolation.contract import Network
from agentenv.isolation.vm.network import GUEST_ADDRESS, connect_guest
from agentenv.node.network import NetworkPool
from agentenv.node.network_slots import NetworkSlot

pytestmark = needs_root


def _network(slot: NetworkSlot) -> Network:
    return Network(True, slot.netns, slot.address, slot.nameservers)


def _pool(lab: Lab) -> NetworkPool:
    return NetworkPool(lab.directory, owner(), size=0, host=lab.host)


def test_a_guest_reaches_the_world_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab)
        slot, other = await pool.acquire(), await pool.acquire()
        server = lab.serve(None, slot.gateway, other.gateway, HOST)
        try:
            with plugged_in(connect_guest(_network(slot))) as guest, plugged_in(connect_guest(_network(other))) as neighbour:
                assert lab.ask(guest, PUBLIC) == f"reached from {HOST}"
                assert lab.ask(neighbour, PUBLIC) == f"reached from {HOST}"
                for forbidden in (slot.gateway, slot.address, HOST, other.address, other.gateway, PRIVATE, METADATA):
                    assert lab.ask(guest, forbidden) == "ECONNREFUSED", forbidden
                assert lab.ask(guest, "192.0.0.1", 9, "udp") == "silence"
                assert lab.ask(guest, "192.0.0.1") == "ECONNREFUSED"
        finally:
            server.kill()
            server.communicate()
            await pool.close()
        lab.wait_for_links_to_go()
        assert lab.leftovers() == {}

    run(tmp_path, scenario)


def test_a_guest_sends_under_its_own_address_only(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab)
        slot = await pool.acquire()
        with plugged_in(connect_guest(_network(slot))) as guest:
            assert lab.ask(guest, PUBLIC) == f"reached from {HOST}"
            for false_sender in (slot.address, "198.51.100.9"):
                lab.tell("ip", "-n", guest.name, "addr", "replace", f"{false_sender}/32", "dev", "lo")
                lab.tell("ip", "-n", guest.name, "route", "replace", PUBLIC, "via", "192.0.0.1", "src", false_sender)
                assert lab.ask(guest, PUBLIC) == "silence"
        await pool.close()

    run(tmp_path, scenario)


def test_each_slot_looks_the_same_from_inside(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab)
        slots = [await pool.acquire(), await pool.acquire()]
        links = [connect_guest(_network(slot)) for slot in slots]
        seen = set()
        for link in links:
            with plugged_in(link) as guest:
                lab.ask(guest, PUBLIC)
                seen.add(lab.tell("ip", "-n", guest.name, "neigh", "show", "dev", "eth0").split(" REACHABLE")[0])
        assert {link.guest for link in links} == {links[0].guest}
        assert links[0].guest.address == f"{GUEST_ADDRESS}/30"
        # A restored guest goes on with the gateway's hardware address that it had learnt elsewhere.
        assert seen == {"192.0.0.1 lladdr 02:ae:00:00:00:01"}
        await pool.close()

    run(tmp_path, scenario)


def test_made_again_it_is_as_it_was_and_stays_within_its_namespace(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab)
        slot = await pool.acquire()
        first = connect_guest(_network(slot), owner=65534)
        assert connect_guest(_network(slot), owner=65534) == first
        shown = lab.tell("ip", "-n", slot.netns.name, "-d", "tuntap", "show")
        assert "user 65534" in shown
        assert "vnet_hdr persist" in shown
        lab.forward(False)
        forwarding = lab.tell("ip", "netns", "exec", slot.netns.name, "cat", "/proc/sys/net/ipv4/ip_forward")
        assert forwarding == "1\n"
        assert "tap0" not in lab.tell("ip", "-br", "link")
        assert "agentenv_guest" not in lab.tell("nft", "list", "tables")
        await pool.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize(("slot_mtu", "guest_mtu"), [(1400, 1400), (9000, 1500)])
def test_large_answers_fit_through_any_way_out(tmp_path: Path, slot_mtu: int, guest_mtu: int) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab)
        slot = await pool.acquire()
        for options in ((), ("-n", slot.netns.name)):
            lab.tell("ip", *options, "link", "set", "eth0" if options else slot.interface, "mtu", str(slot_mtu))
        link = connect_guest(_network(slot))
        assert link.mtu == guest_mtu
        with plugged_in(link) as guest:
            # The guest's own interface keeps 1500, as in a monitor that cannot tell it otherwise.
            lab.tell("ip", "-n", guest.name, "link", "set", "eth0", "mtu", "1500")
            assert lab.ask(guest, PUBLIC) == f"reached from {HOST}"
            assert _segment_size(lab, guest) <= guest_mtu - 40
        await pool.close()

    run(tmp_path, scenario)


def _segment_size(lab: Lab, guest: Path) -> int:
    """The largest segment (bytes) that a connection from `guest` to the world will send."""
    program = f"import socket as s; c = s.create_connection(({PUBLIC!r}, {PORT})); print(c.getsockopt(s.IPPROTO_TCP, s.TCP_MAXSEG))"
    return int(lab.tell("nsenter", f"--net={guest}", "python3", "-S", "-c", program))


def test_only_an_enabled_network_is_connected() -> None:
    with pytest.raises(ValueError, match="an enabled network"):
        connect_guest(Network())


def test_a_missing_namespace_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        connect_guest(Network(True, tmp_path / "absent", "10.200.0.2"))


def test_a_machine_monitor_finds_the_tap_by_its_fixed_name(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        pool = _pool(lab)
        slot = await pool.acquire()
        link = connect_guest(_network(slot))
        assert "02:ae:00:00:00:01" in lab.tell("ip", "-n", slot.netns.name, "-br", "link", "show", link.tap)
        await pool.close()

    run(tmp_path, scenario)
