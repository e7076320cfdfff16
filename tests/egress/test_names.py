"""The name server of a sandbox, alone: no message makes it stumble, and it asks for no name that is not allowed."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import cast

import dns.asyncresolver
import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.resolver
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.node.test_network import Events

from agentenv.egress import names, resolver
from agentenv.egress.denials import DenialLog
from agentenv.egress.names import NameServer
from agentenv.egress.policy import EgressPolicy
from agentenv.egress.resolver import LookupFailed, NoSuchName, Resolver, reachable

POLICY = EgressPolicy.of(False, ["good.example", "*.good.example"])
ADDRESS = "203.0.113.5"


class Source:
    """In the place of dnspython's resolver."""

    def __init__(self, answers: Mapping[str, list[str]], *, broken: bool = False) -> None:
        self._answers = answers
        self._broken = broken
        self.asked: list[str] = []

    async def resolve(self, name: str, kind: str, *, search: bool, lifetime: float) -> dns.resolver.Answer:
        self.asked.append(name)
        if self._broken:
            raise dns.exception.Timeout
        query = dns.message.make_query(name, kind)
        response = dns.message.make_response(query)
        if name not in self._answers:
            raise dns.resolver.NXDOMAIN
        response.answer.append(dns.rrset.from_text(f"{name}.", 60, "IN", kind, *self._answers[name]))
        arrived = cast(dns.message.QueryMessage, dns.message.from_wire(response.to_wire()))
        return dns.resolver.Answer(query.question[0].name, query.question[0].rdtype, query.question[0].rdclass, arrived)


def server(source: Source, policy: EgressPolicy = POLICY) -> NameServer:
    looking_up = Resolver(cast(dns.asyncresolver.Resolver, source))
    return NameServer(lambda: policy, looking_up, DenialLog("sb1", Events()))


async def ask(server: NameServer, name: str, kind: str = "A") -> dns.message.Message:
    answer = await server.answer(dns.message.make_query(name, kind).to_wire())
    assert answer is not None
    return dns.message.from_wire(answer)


@given(st.binary(max_size=600), st.binary(min_size=1, max_size=8), st.integers(0, 40))
async def test_no_message_makes_it_stumble(data: bytes, change: bytes, place: int) -> None:
    source = Source({"good.example": [ADDRESS]})
    question = dns.message.make_query("good.example", "A").to_wire()
    damaged = question[:place] + change + question[place + len(change) :]
    for message in (data, damaged, question + data):
        answer = await server(source).answer(message)
        assert answer is None or dns.message.from_wire(answer).flags & dns.flags.QR
    assert set(source.asked) <= {"good.example"}


@pytest.mark.parametrize("kind", ["AAAA", "TXT", "MX", "NULL", "HTTPS", "ANY", "SRV", "PTR"])
async def test_nothing_but_addresses_is_asked_for(kind: str) -> None:
    source = Source({"good.example": [ADDRESS]})
    answer = await ask(server(source), "good.example", kind)
    assert (answer.rcode(), answer.answer, source.asked) == (dns.rcode.NOERROR, [], [])
    denied = await ask(server(source), f"{'x' * 50}.evil.example", kind)
    assert (denied.rcode(), source.asked) == (dns.rcode.NXDOMAIN, [])


async def test_answers_are_kept_and_shared() -> None:
    source = Source({"good.example": [ADDRESS, "203.0.113.6"]})
    one = server(source)
    for _ in range(3):
        answer = await ask(one, "Good.Example")
        assert {record.address for record in answer.answer[0]} == {ADDRESS, "203.0.113.6"}
        assert 1 <= answer.answer[0].ttl <= 60
    assert source.asked == ["good.example"]


async def test_inner_addresses_are_left_out_of_answers() -> None:
    mixed = Source({"a.good.example": ["10.0.0.1", ADDRESS, "169.254.169.254"], "b.good.example": ["127.0.0.1"]})
    assert [record.address for record in (await ask(server(mixed), "a.good.example")).answer[0]] == [ADDRESS]
    assert (await ask(server(mixed), "b.good.example")).rcode() == dns.rcode.NXDOMAIN


async def test_a_name_server_that_is_silent_is_a_failure_of_the_server() -> None:
    broken = server(Source({}, broken=True))
    assert (await ask(broken, "good.example")).rcode() == dns.rcode.SERVFAIL


async def test_absent_names_are_absent() -> None:
    source = Source({})
    one = server(source)
    for _ in range(2):
        assert (await ask(one, "x.good.example")).rcode() == dns.rcode.NXDOMAIN
    assert source.asked == ["x.good.example"]


async def test_questions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "QUESTIONS_A_SECOND", 0.0)
    one = server(Source({"good.example": [ADDRESS]}))
    codes = [(await ask(one, "good.example")).rcode() for _ in range(int(names.BURST) + 1)]
    assert codes == [dns.rcode.NOERROR] * int(names.BURST) + [dns.rcode.REFUSED]


async def test_other_operations_are_not_done() -> None:
    update = dns.message.make_query("good.example", "A")
    update.set_opcode(dns.opcode.NOTIFY)
    answer = await server(Source({})).answer(update.to_wire())
    assert answer is not None
    assert dns.message.from_wire(answer).rcode() == dns.rcode.NOTIMP


async def test_lookups_fail_in_their_own_words() -> None:
    with pytest.raises(NoSuchName):
        await Resolver(cast(dns.asyncresolver.Resolver, Source({}))).lookup("x.example")
    with pytest.raises(LookupFailed, match=r"x\.example"):
        await Resolver(cast(dns.asyncresolver.Resolver, Source({}, broken=True))).lookup("x.example")


async def test_only_so_many_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "_MOST_KEPT", 2)
    source = Source({name: [ADDRESS] for name in ("a.example", "b.example", "c.example")})
    one = Resolver(cast(dns.asyncresolver.Resolver, source))
    for name in ("a.example", "b.example", "c.example", "c.example", "a.example"):
        await one.lookup(name)
    assert source.asked == ["a.example", "b.example", "c.example", "a.example"]


@given(st.lists(st.ip_addresses(v=4), max_size=5), st.booleans(), st.sampled_from([(), ("good.example",), ("10.0.0.0/8",)]))
def test_a_name_never_leads_off_the_internet(addresses: list[ipaddress.IPv4Address], internet: bool, allow: tuple[str, ...]) -> None:
    found = reachable(tuple(addresses), EgressPolicy.of(internet, allow), "good.example", 443)
    ten, documentation = ipaddress.IPv4Network("10.0.0.0/8"), ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
    for address in found:
        if address in ten:
            assert allow == ("10.0.0.0/8",)
        else:
            assert address.is_global or any(address in ipaddress.IPv4Network(network) for network in documentation)
