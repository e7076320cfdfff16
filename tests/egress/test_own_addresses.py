"""Which addresses are the machine's, also where every address can be bound to."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import pytest
from tests.node.network_lab import HOST, METADATA, PRIVATE, PUBLIC, Lab, needs_root, run

from agentenv.egress.own_addresses import is_own
from agentenv.egress.policy import EgressPolicy
from agentenv.egress.resolver import reachable

OWN = ("127.0.0.1", "127.9.9.9", HOST)
OTHERS = (PUBLIC, PRIVATE, METADATA, "192.0.2.1")


def test_loopback_is_the_machines_own_and_documentation_addresses_are_not() -> None:
    assert is_own(ipaddress.IPv4Address("127.0.0.1"))
    assert not is_own(ipaddress.IPv4Address("203.0.113.77"))


@needs_root
@pytest.mark.parametrize("nonlocal_bind", ["0", "1"])
def test_addresses_are_told_apart_whatever_can_be_bound_to(tmp_path: Path, nonlocal_bind: str) -> None:
    async def scenario(lab: Lab) -> None:
        lab.tell("sh", "-c", f"echo {nonlocal_bind} > /proc/sys/net/ipv4/ip_nonlocal_bind")
        with socket.socket(type=socket.SOCK_DGRAM) as probe:
            if nonlocal_bind == "1":
                probe.bind((PUBLIC, 0))
        assert [address for address in (*OWN, *OTHERS) if is_own(ipaddress.IPv4Address(address))] == [*OWN]
        assert is_own(ipaddress.IPv4Address("192.0.2.255")), "to all of the host's network"
        found = reachable(tuple(map(ipaddress.IPv4Address, (HOST, PUBLIC, PRIVATE))), EgressPolicy(), "good.example", 443)
        assert found == [ipaddress.IPv4Address(PUBLIC)]

    run(tmp_path, scenario)


@needs_root
def test_what_no_packet_reaches_is_nobodys(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        lab.tell("ip", "route", "del", "default")
        lab.tell("ip", "route", "add", "blackhole", "198.51.100.0/24")
        assert not is_own(ipaddress.IPv4Address(PUBLIC))
        assert not is_own(ipaddress.IPv4Address("198.51.100.7"))

    run(tmp_path, scenario)
