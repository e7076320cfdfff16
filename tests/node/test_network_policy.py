"""The policy as text and numbers: ranges, name servers, rules."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.node.network_lab import needs_root

from agentenv.egress import nftables
from agentenv.egress.policy import SPECIAL
from agentenv.egress.rules import TABLE
from agentenv.node import network_policy as policy

networks = st.builds(
    lambda address, length: str(ipaddress.ip_network((address, length), strict=False)), st.integers(0, 2**32 - 1), st.integers(0, 32)
)


@given(st.integers(0, policy.SLOTS_PER_RANGE - 1), st.integers(0, policy.SLOTS_PER_RANGE - 1), st.sampled_from(policy.SLOT_RANGES))
def test_slots_never_share_an_address(first: int, second: int, slot_range: str) -> None:
    whole = ipaddress.IPv4Network(slot_range)
    one, other = policy.addresses(whole, first), policy.addresses(whole, second)
    links = [ipaddress.ip_interface(f"{end.address}/{end.prefix_length}").network for end in (one, other)]
    assert ipaddress.ip_address(one.gateway) in links[0]
    assert links[0].subnet_of(whole)
    assert (first == second) == links[0].overlaps(links[1])


@given(st.lists(networks, max_size=8))
def test_the_chosen_range_overlaps_no_route(routes: list[str]) -> None:
    chosen = policy.choose_range(routes)
    taken = [network for route in routes if (network := ipaddress.IPv4Network(route)).prefixlen > 1]
    if chosen is None:
        assert all(any(ipaddress.IPv4Network(candidate).overlaps(network) for network in taken) for candidate in policy.SLOT_RANGES)
    else:
        assert not any(chosen.overlaps(network) for network in taken)


def test_default_routes_in_any_spelling_and_ipv6_do_not_count() -> None:
    assert str(policy.choose_range(["0.0.0.0/1", "128.0.0.0/1", "fd00::/8", "192.0.2.7"])) == policy.SLOT_RANGES[0]


def test_name_servers_in_reach_are_kept_in_order() -> None:
    lines = ("# nameserver 1.1.1.1", "nameserver 127.0.0.53", "nameserver ::1", "nameserver 10.0.0.2 # office", "search x")
    odd = ("nameserver 9.9.9.9", "nameserver 10.0.0.2", "nameserver", "nameserver 0.0.0.0", "nameserver fe80::1%eth0", "nameserver what")
    text = "\n".join((*lines, *odd))
    assert policy.parse_nameservers(text) == ("10.0.0.2", "9.9.9.9")


@given(st.text())
def test_no_resolv_conf_breaks_the_parser(text: str) -> None:
    assert all(ipaddress.ip_address(server).version == 4 for server in policy.parse_nameservers(text))


def test_a_resolver_on_loopback_gives_way_to_the_servers_behind_it(tmp_path: Path) -> None:
    stub, real = tmp_path / "stub", tmp_path / "real"
    stub.write_text("nameserver 127.0.0.53\n")
    assert policy.host_nameservers((stub, real)) == ()
    real.write_text("nameserver 198.51.100.1\n")
    assert policy.host_nameservers((stub, real)) == ("198.51.100.1",)


@pytest.mark.parametrize("address", ["10.1.2.3", "172.31.0.1", "192.168.9.9", "100.64.0.1", "127.0.0.1", "169.254.169.254", "224.0.0.1"])
def test_everything_off_the_public_internet_is_denied(address: str) -> None:
    assert any(ipaddress.ip_address(address) in ipaddress.ip_network(network) for network in SPECIAL)


@given(st.lists(networks.map(str), max_size=3, unique=True), st.lists(st.ip_addresses(v=4).map(str), max_size=3, unique=True))
def test_the_rules_name_every_range_and_server(ranges: list[str], servers: list[str]) -> None:
    text = policy.ruleset(ranges, servers)
    assert all(item in text for item in (*ranges, *servers, *SPECIAL))
    assert text.startswith(f"add table inet {TABLE}\n")
    assert "delete" not in text


@needs_root
@pytest.mark.parametrize(("ranges", "servers"), [((), ()), (("10.200.0.0/16", "172.30.0.0/16"), ("10.0.0.2", "9.9.9.9"))])
def test_the_kernel_would_take_the_rules(ranges: tuple[str, ...], servers: tuple[str, ...]) -> None:
    nftables.apply(policy.ruleset(ranges, servers), check_only=True)
    with pytest.raises(nftables.RulesRefused):
        nftables.apply(policy.ruleset(("nonsense!",), servers), check_only=True)
