"""The kernel's log of packets, read from whatever bytes come, and the short list that is made of it."""

from __future__ import annotations

import ipaddress
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.node.network_lab import needs_root
from tests.node.test_network import Events

from agentenv.egress.denials import LONGEST_LOG, DenialLog, Packet, listen, packets, waiting

FROM = ipaddress.IPv4Address("10.200.0.2")


def message(packet: bytes, kind: int = 0x0400) -> bytes:
    """One message of the log, with an attribute that is passed over and one that has the packet."""
    attributes = struct.pack("=HHI", 8, 1, 7) + struct.pack("=HH", 4 + len(packet), 9) + packet + bytes(-len(packet) % 4)
    return struct.pack("=IHHII", 20 + len(attributes), kind, 0, 0, 0) + bytes(4) + attributes


def ipv4(destination: ipaddress.IPv4Address, protocol: int, port: int) -> bytes:
    header = struct.pack("!BBHHHBBH4s4s", 0x46, 0, 28, 0, 0, 64, protocol, 0, FROM.packed, destination.packed)
    return header + bytes(4) + struct.pack("!HHHH", 1234, port, 8, 0)


@given(st.ip_addresses(v=4), st.sampled_from([(6, "tcp"), (17, "udp")]), st.integers(0, 65535), st.integers(1, 3))
def test_packets_are_understood(destination: ipaddress.IPv4Address, protocol: tuple[int, str], port: int, count: int) -> None:
    data = message(ipv4(destination, protocol[0], port)) * count
    assert list(packets(data + message(b"", kind=3))) == [Packet(destination, port, protocol[1])] * count


@given(st.ip_addresses(v=6))
def test_ipv6_and_other_protocols_are_understood(destination: ipaddress.IPv6Address) -> None:
    packet = bytes([0x60, 0, 0, 0, 0, 0, 58, 1]) + bytes(16) + destination.packed
    assert list(packets(message(packet))) == [Packet(destination, 0, "protocol 58")]
    assert list(packets(message(ipv4(FROM, 1, 99)))) == [Packet(FROM, 0, "icmp")]


@given(st.binary(max_size=200), st.integers(0, 100))
def test_nonsense_is_passed_over(data: bytes, cut: int) -> None:
    whole = message(ipv4(FROM, 6, 80))
    for attempt in (data, whole[:cut] + data, message(data)):
        assert all(isinstance(packet, Packet) for packet in packets(attempt))


def test_the_list_is_short_and_events_are_few() -> None:
    events = Events()
    log = DenialLog("sb1", events)
    for port in range(LONGEST_LOG + 100):
        log.add("evil.example", port, "tcp", "deny evil.example")
    assert [denial.port for denial in log.entries()] == list(range(100, LONGEST_LOG + 100))
    assert len(events.seen) == 60
    assert events.seen[0][1] == {
        "id": "sb1",
        "destination": "evil.example",
        "port": 0,
        "protocol": "tcp",
        "rule": "deny evil.example",
        "untold": 0,
    }


@needs_root
def test_a_group_has_one_listener() -> None:
    with listen(40_001) as first:
        with pytest.raises(OSError, match="netfilter log 40001"):
            listen(40_001)
        assert list(waiting(first)) == []
    with listen(40_001) as again:
        assert again.family == socket.AF_NETLINK
