"""The answers of a policy, alone."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.egress.test_destinations import DESTINATIONS

from agentenv.egress.policy import SPECIAL, EgressPolicy, is_special

ADDRESSES = st.ip_addresses(v=4)
PUBLIC = ipaddress.IPv4Address("203.0.113.5")
PRIVATE = ipaddress.IPv4Address("10.1.2.3")
METADATA = ipaddress.IPv4Address("169.254.169.254")


@given(st.booleans(), st.lists(DESTINATIONS, max_size=4), st.lists(DESTINATIONS, max_size=4), st.none() | st.integers(1, 10**9))
def test_a_policy_survives_being_written_down(internet: bool, allow: list[object], deny: list[object], rate: int | None) -> None:
    try:
        policy = EgressPolicy.of(internet, map(str, allow), map(str, deny), upload=rate)
    except ValueError:
        return
    assert EgressPolicy.from_dict(policy.to_dict()) == policy


def test_by_default_everything_public_and_nothing_else() -> None:
    policy = EgressPolicy()
    assert policy.judge_address(PUBLIC, 80) is None
    assert policy.judge_address(METADATA, 80) == "not on the public internet"
    assert (policy.open, policy.by_name) == (True, False)


@given(ADDRESSES, st.integers(0, 65535))
def test_to_allow_everything_is_not_to_name_what_is_not_public(address: ipaddress.IPv4Address, port: int) -> None:
    assert (EgressPolicy.of(False, ["0.0.0.0/0"]).judge_address(address, port) is None) == (not is_special(address))


def test_what_is_not_public_is_reached_where_it_is_named() -> None:
    policy = EgressPolicy.of(allow=["10.1.0.0/16:5432", "169.254.169.254"])
    assert policy.judge_address(PRIVATE, 5432) is None
    assert policy.judge_address(PRIVATE, 5433) == "not on the public internet"
    assert policy.judge_address(METADATA, 80) is None


def test_allow_stands_before_deny_and_both_before_the_internet() -> None:
    policy = EgressPolicy.of(allow=["203.0.113.0/28"], deny=["203.0.113.0/24", "192.0.2.0/24:80"])
    assert policy.judge_address(PUBLIC, 80) is None
    assert policy.judge_address(ipaddress.IPv4Address("203.0.113.99"), 80) == "deny 203.0.113.0/24"
    assert policy.judge_address(ipaddress.IPv4Address("192.0.2.1"), 80) == "deny 192.0.2.0/24:80"
    assert policy.judge_address(ipaddress.IPv4Address("192.0.2.1"), 81) is None
    assert EgressPolicy.of(False).judge_address(PUBLIC, 80) == "allow_internet_access: false"


def test_to_deny_everything_is_to_have_no_internet() -> None:
    assert not EgressPolicy.of(deny=["0.0.0.0/0"]).open
    assert EgressPolicy.of(deny=["0.0.0.0/0:80"]).open


def test_names() -> None:
    policy = EgressPolicy.of(False, ["example.com", "*.example.org:8443", "10.0.0.0/8"])
    assert policy.by_name
    assert policy.judge_name("example.com", 443) is None
    assert policy.judge_name("example.com", 8443) == "no rule of allow names it"
    assert policy.judge_name("files.example.org", 8443) is None
    assert policy.judge_name("files.example.org", None) is None
    assert policy.judge_name("example.org", 8443) == "no rule of allow names it"
    assert policy.named_ports == (80, 443, 8443)
    denying = EgressPolicy.of(deny=["*.evil.example"])
    assert denying.judge_name("a.evil.example", 443) == "deny *.evil.example"
    assert denying.judge_name("other.example", 443) is None
    excepted = EgressPolicy.of(allow=["good.evil.example"], deny=["*.evil.example"])
    assert excepted.judge_name("good.evil.example", 443) is None


@pytest.mark.parametrize(
    ("policy", "by_name"),
    [
        (EgressPolicy.of(), False),
        (EgressPolicy.of(allow=["example.com"]), False),
        (EgressPolicy.of(False, ["example.com"]), True),
        (EgressPolicy.of(allow=["example.com"], deny=["0.0.0.0/0"]), True),
        (EgressPolicy.of(deny=["example.com"]), True),
        (EgressPolicy.of(False, ["8.8.8.8"]), False),
    ],
)
def test_the_proxy_is_there_only_where_names_matter(policy: EgressPolicy, by_name: bool) -> None:
    assert policy.by_name is by_name


@pytest.mark.parametrize("network", SPECIAL)
def test_all_special_ranges_are_special_to_their_ends(network: str) -> None:
    block = ipaddress.IPv4Network(network)
    assert is_special(block[0])
    assert is_special(block[-1])
