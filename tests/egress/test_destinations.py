"""What network rules may name."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.destinations import Block, Domain, parse_allowed, parse_destination

LABELS = st.from_regex(r"[a-z][a-z0-9-]{0,10}[a-z0-9]", fullmatch=True)
DOMAINS = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
PORTS = st.none() | st.integers(1, 65535)
NETWORKS = st.builds(
    lambda address, length: ipaddress.IPv4Network((address, length), strict=False), st.integers(0, 2**32 - 1), st.integers(0, 32)
)
DESTINATIONS = st.builds(Block, NETWORKS, PORTS) | st.builds(Domain, DOMAINS, st.booleans(), PORTS)


@given(DESTINATIONS)
def test_what_is_written_is_read_back(destination: Block | Domain) -> None:
    assert parse_destination(str(destination)) == destination


@given(st.text())
def test_nothing_else_than_a_value_error_comes_of_nonsense(text: str) -> None:
    try:
        parsed = parse_destination(text)
    except ValueError as error:
        complaint = str(error)
    else:
        complaint = ""
        assert parse_destination(str(parsed)) == parsed
    assert not complaint or "; " in complaint


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("https://example.com/x", "is a URL; write its host alone"),
        ("10.0.0.1/8", "did you mean 10.0.0.0/8?"),
        ("10.0.0.256", "neither an IPv4 address nor a range"),
        ("10.0.0.1/33", "neither an IPv4 address nor a range"),
        ("example.com:0", "ports are whole numbers from 1 to 65535"),
        ("example.com:https", "ports are whole numbers"),
        ("fd00::1", "looks like IPv6, which sandboxes do not have"),
        ("[fd00::1]:443", "looks like IPv6"),
        ("*", "write 0.0.0.0/0 for all addresses"),
        ("a.*.com", "stands alone at the front"),
        ("exämple.com", "write its ASCII form, which begins with xn--"),
        ("-x.com", "is no domain"),
        ("x..com", "is no domain"),
        ("", "is no domain"),
        ("1.2.3", "neither an IPv4 address"),
        ("host.7", "is no domain"),
        (f"{'a' * 64}.com", "is no domain"),
        (f"{'a.' * 127}com", "is no domain"),
    ],
)
def test_mistakes_are_explained(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("?", r"\?").replace("*", r"\*")):
        parse_destination(text)


@pytest.mark.parametrize("text", ["127.0.0.1", "127.0.0.0/8:80", "0.0.0.0", "224.0.0.1", "255.255.255.255", "240.0.0.0/4"])
def test_what_no_packet_can_reach_cannot_be_allowed(text: str) -> None:
    assert isinstance(parse_destination(text), Block)
    with pytest.raises(ValueError, match="nothing outside of a sandbox has"):
        parse_allowed(text)


def test_domains_match_as_they_read() -> None:
    exact, below = Domain("example.com"), Domain("example.com", below=True)
    assert [exact.matches(name) for name in ("example.com", "www.example.com", "badexample.com")] == [True, False, False]
    assert [below.matches(name) for name in ("example.com", "a.b.example.com", "badexample.com")] == [False, True, False]
    assert parse_destination("EXAMPLE.com.") == exact


def test_blocks_match_address_and_port() -> None:
    block = parse_destination("10.1.0.0/16:53")
    assert isinstance(block, Block)
    address = ipaddress.IPv4Address("10.1.2.3")
    assert (block.matches(address, 53), block.matches(address, 54)) == (True, False)
    assert not block.matches(ipaddress.IPv4Address("10.2.0.1"), 53)
