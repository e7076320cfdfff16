"""A sandbox's policy on a real kernel, with servers, names and an attacker, in network namespaces of the test's own."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.egress.egress_lab import OTHER, asked_of_world, attack, needs_openssl, outside_world, request
from tests.node.network_lab import HOST, METADATA, PRIVATE, PUBLIC, Lab, needs_root, owner, run
from tests.node.test_network import Events

from agentenv.egress import nftables
from agentenv.egress.guard import Guard
from agentenv.egress.netns import inside
from agentenv.egress.policy import EgressPolicy
from agentenv.egress.rules import VIRTUAL_NAMESERVER
from agentenv.errors import InfrastructureError, InvalidState
from agentenv.node.network import NetworkPool
from agentenv.node.network_slots import NetworkSlot

pytestmark = [needs_root, needs_openssl]
Scenario = Callable[[Lab, NetworkPool, NetworkSlot, Guard], Awaitable[None]]
A, TXT, AAAA, NULL = 1, 16, 28, 10
REFUSED = "ECONNREFUSED"


def read_to_the_end(connection: socket.socket) -> bytes:
    found = b""
    while data := connection.recv(1000):
        found += data
    return found


def guarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: EgressPolicy, scenario: Scenario, events: Events | None = None
) -> None:
    """Runs `scenario` with a slot under `policy`, and looks that nothing is left of it."""

    async def body(lab: Lab) -> None:
        pool = NetworkPool(lab.directory, owner(), size=0, events=events, host=lab.host)
        try:
            async with outside_world(lab, monkeypatch):
                slot = await pool.acquire()
                guard = await pool.guard(slot, "sb1", policy)
                await scenario(lab, pool, slot, guard)
                await pool.release(slot)
                assert slot.interface not in nftables.ask("list ruleset")
        finally:
            await pool.close()
        lab.wait_for_links_to_go()
        assert lab.leftovers() == {}

    run(tmp_path, body)


def test_addresses_are_allowed_and_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        attempts: list[list[object]] = [["tcp", PUBLIC, 80], ["tcp", OTHER, 80], ["tcp", OTHER, 8080], ["tcp", PRIVATE, 80]]
        assert [found[:7] for found in await attack(slot.netns, attempts)] == ["reached", REFUSED[:7], "reached", REFUSED[:7]]
        await guard.change(EgressPolicy.of(False, [f"{PRIVATE}:80", PUBLIC]))
        assert [found[:7] for found in await attack(slot.netns, attempts)] == ["reached", REFUSED[:7], REFUSED[:7], "reached"]
        assert (await attack(slot.netns, [["tcp", PRIVATE, 8080], ["udp", METADATA, 53]])) == [REFUSED, "EPERM"]
        await guard.change(EgressPolicy.of(False, ["0.0.0.0/0"]))
        assert [found[:7] for found in await attack(slot.netns, attempts)] == ["reached", "reached", "reached", REFUSED[:7]]
        await guard.change(EgressPolicy())
        assert [found[:7] for found in await attack(slot.netns, attempts)] == ["reached", "reached", "reached", REFUSED[:7]]

    guarded(tmp_path, monkeypatch, EgressPolicy.of(deny=[f"{OTHER}:80"]), scenario)


REACHABLE = [(address, port) for address in (PUBLIC, OTHER, PRIVATE, METADATA) for port in (8080, 7777)]
NETWORKS = ["0.0.0.0/0", "203.0.113.0/24", "203.0.113.4/31", OTHER, "10.0.0.0/8", "10.9.0.0/16", "169.254.169.254", "128.0.0.0/1"]
ENTRIES = st.lists(
    st.builds(lambda network, port: network + port, st.sampled_from(NETWORKS), st.sampled_from(["", ":8080", ":9"])), max_size=3
)
POLICIES = st.lists(st.builds(EgressPolicy.of, st.booleans(), ENTRIES, ENTRIES), min_size=5, max_size=5)


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(POLICIES)
def test_the_kernel_judges_as_the_policy_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policies: list[EgressPolicy]) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        for policy in policies:
            await guard.change(policy)
            found = await attack(slot.netns, [["http", address, port, request("x")] for address, port in REACHABLE])
            expected = [policy.judge_address(ipaddress.IPv4Address(address), port) is None for address, port in REACHABLE]
            assert dict(zip(REACHABLE, [one.startswith("reached") for one in found], strict=True)) == dict(
                zip(REACHABLE, expected, strict=True)
            )
            assert all(one == REFUSED for one in found if not one.startswith("reached"))

    guarded(tmp_path, monkeypatch, EgressPolicy(), scenario)


def test_without_its_proxy_nothing_is_let_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        attempts: list[list[object]] = [["tls", PUBLIC, 443, "good.example"], ["dns", "9.9.9.9", "good.example", A]]
        assert all(one.startswith("reached") for one in await attack(slot.netns, attempts))
        assert guard._proxy is not None
        await guard._proxy.close()
        assert await attack(slot.netns, attempts) == [REFUSED, REFUSED]

    guarded(tmp_path, monkeypatch, EgressPolicy.of(False, ["good.example"]), scenario)


def test_the_host_is_reached_where_it_is_named_and_other_sandboxes_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        other = await pool.acquire()
        server, neighbour = lab.serve(), lab.serve(other.netns)
        try:
            attempts: list[list[object]] = [["tcp", HOST, 7777], ["tcp", other.address, 7777], ["tcp", other.gateway, 7777]]
            assert await attack(slot.netns, attempts) == [REFUSED] * 3
            await guard.change(EgressPolicy.of(allow=["192.0.2.0/24", "10.0.0.0/8", other.address, "172.16.0.0/12"]))
            assert await attack(slot.netns, attempts) == [REFUSED] * 3
            await guard.change(EgressPolicy.of(allow=[f"{HOST}:7777", "10.0.0.0/8"]))
            found = await attack(slot.netns, [*attempts, ["tcp", HOST, 53]])
            assert found[0].startswith("reached")
            assert found[1:] == [REFUSED] * 3
        finally:
            for process in (server, neighbour):
                process.kill()
                process.communicate()

    guarded(tmp_path, monkeypatch, EgressPolicy(), scenario)


def test_what_a_change_denies_ends_and_what_it_allows_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        def connect(address: str) -> socket.socket:
            return inside(slot.netns, lambda: socket.create_connection((address, 80), 5))

        kept, cut = connect(PUBLIC), connect(OTHER)
        await guard.change(EgressPolicy.of(deny=[OTHER]))
        for connection in (kept, cut):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(12) == b"HTTP/1.1 200"
        with pytest.raises(ConnectionResetError):
            cut.recv(1)
        kept.close()
        cut.close()

    guarded(tmp_path, monkeypatch, EgressPolicy(), scenario)


def test_names_decide_whatever_address_is_on_the_packets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        outcomes = {
            ("tls", PUBLIC, 443, "good.example"): f"reached: {PUBLIC} good.example",
            ("tls", OTHER, 443, "good.example"): f"reached: {PUBLIC} good.example",
            ("tls", OTHER, 443, "WWW.Good.Example"): f"reached: {PUBLIC} WWW.Good.Example",
            ("tls", PUBLIC, 443, "evil.example"): "TLS: TLSV1_ALERT_ACCESS_DENIED",
            ("tls", PUBLIC, 443, None): "TLS: TLSV1_ALERT_ACCESS_DENIED",
            ("tls", PUBLIC, 8443, "good.example"): "ECONNREFUSED",
            ("tls", OTHER, 443, "rebind.good.example"): "TLS: TLSV1_ALERT_ACCESS_DENIED",
            ("tls", OTHER, 443, "metadata.good.example"): "TLS: TLSV1_ALERT_ACCESS_DENIED",
            ("tls", OTHER, 443, "host.good.example"): "TLS: TLSV1_ALERT_ACCESS_DENIED",
            ("tls", OTHER, 443, "loopback.good.example"): "TLS: TLSV1_ALERT_ACCESS_DENIED",
            ("tls", OTHER, 443, "absent.good.example"): "TLS: TLSV1_ALERT_ACCESS_DENIED",
            ("tls", METADATA, 443, "good.example"): "ECONNREFUSED",
            ("tcp", PUBLIC, 22): "ECONNREFUSED",
            ("udp", PUBLIC, 443): "EPERM",
        }
        assert dict(zip(outcomes, await attack(slot.netns, map(list, outcomes)), strict=True)) == outcomes

    guarded(tmp_path, monkeypatch, EgressPolicy.of(False, ["good.example", "*.good.example"]), scenario)


def test_hosts_of_plain_requests_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        good, evil = request("good.example"), request("evil.example")
        attempts: list[list[object]] = [
            ["http", OTHER, 80, good],
            ["http", PUBLIC, 80, evil],
            ["http", PUBLIC, 80, request(PUBLIC)],
            ["http", PUBLIC, 80, good, evil],
            ["http", PUBLIC, 80, good + evil],
            ["http", PUBLIC, 80, request("good.example", target="http://evil.example/")],
            ["http", PUBLIC, 80, request("good.example:443", method="CONNECT", target="good.example:443")],
            ["http", PUBLIC, 80, request("good.example", "Upgrade: echo", target="/echo"), "hello\r\n"],
            ["http", PUBLIC, 80, request("good.example", "Upgrade: echo"), evil],
            ["http", PUBLIC, 80, request("good.example", "Upgrade: echo") + evil],
        ]
        found = await attack(slot.netns, attempts)
        assert f"{PUBLIC} good.example GET" in found[0]
        for refused in (1, 2, 5, 6, 9):
            assert "403 Forbidden" in found[refused], found[refused]
        assert "evil.example: no rule of allow names it" in found[1]
        # A second request is not answered, whoever sent it: the server has been told to close, or nothing more is passed on.
        assert found[3].endswith("good.example GET|") or found[3] in ("ECONNRESET", "EPIPE")
        assert found[4].endswith("good.example GET")
        assert "evil" not in found[8]
        assert found[7].endswith("|hello\r\n")

    guarded(tmp_path, monkeypatch, EgressPolicy.of(False, ["good.example"]), scenario)


def test_only_allowed_names_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        secret = f"{'s' * 60}.evil.example"
        outcomes = {
            ("dns", (slot.nameservers or (VIRTUAL_NAMESERVER,))[0], "good.example", A): f"reached: code 0, 1 records, {PUBLIC}",
            ("dns", "9.9.9.9", "GOOD.example", A): f"reached: code 0, 1 records, {PUBLIC}",
            ("dns", "9.9.9.9", "good.example", A, "tcp"): f"reached: code 0, 1 records, {PUBLIC}",
            ("dns", "9.9.9.9", "good.example", AAAA): "reached: code 0, 0 records",
            ("dns", "9.9.9.9", "good.example", TXT): "reached: code 0, 0 records",
            ("dns", "9.9.9.9", "good.example", NULL): "reached: code 0, 0 records",
            ("dns", "9.9.9.9", secret, A): "reached: code 3, 0 records",
            ("dns", "9.9.9.9", secret, TXT, "tcp"): "reached: code 3, 0 records",
            ("dns", "9.9.9.9", f"{'s' * 60}.good.example", A): "reached: code 3, 0 records",
            ("dns", "9.9.9.9", "internal.example", A): f"reached: code 0, 1 records, {PRIVATE}",
            ("dns", PRIVATE, "good.example", A): "EPERM",
        }
        assert dict(zip(outcomes, await attack(slot.netns, map(list, outcomes)), strict=True)) == outcomes
        assert set(await asked_of_world(lab)) == {"good.example A", "internal.example A"}
        # A name that was allowed for an address of its own range is connected to there, and nowhere else inside.
        assert await attack(slot.netns, [["tls", PRIVATE, 443, "internal.example"], ["tcp", PRIVATE, 8080]]) == [
            f"reached: {PRIVATE} internal.example",
            REFUSED,
        ]

    policy = EgressPolicy.of(False, ["good.example", "internal.example", f"{PRIVATE}:443"])
    guarded(tmp_path, monkeypatch, policy, scenario)


def test_names_are_denied_out_of_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        outcomes = {
            ("tls", PUBLIC, 443, "evil.example"): "TLS: TLSV1_ALERT_ACCESS_DENIED",
            ("tls", OTHER, 443, "good.example"): f"reached: {PUBLIC} good.example",
            ("tls", OTHER, 443, "internal.example"): "TLS: TLSV1_ALERT_ACCESS_DENIED",
            ("tls", OTHER, 8443, "evil.example"): "TLS: TLSV1_ALERT_ACCESS_DENIED",
            ("dns", "9.9.9.9", "evil.example", A): "reached: code 3, 0 records",
            ("dns", "9.9.9.9", "good.example", A): f"reached: code 0, 1 records, {PUBLIC}",
            ("dns", "9.9.9.9", "rebind.good.example", A): "reached: code 3, 0 records",
        }
        assert dict(zip(outcomes, await attack(slot.netns, map(list, outcomes)), strict=True)) == outcomes
        assert "reached" in (await attack(slot.netns, [["http", OTHER, 8080, request("evil.example")]]))[0]

    guarded(tmp_path, monkeypatch, EgressPolicy.of(deny=["evil.example", "evil.example:8443"]), scenario)


def test_the_proxy_cannot_be_spoken_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        ports = guard.proxy_ports
        assert ports is not None
        attempts: list[list[object]] = [["tcp", slot.gateway, ports.connections], ["tcp", slot.gateway, ports.questions]]
        inside(slot.netns, lambda: nftables.apply("flush ruleset"))
        assert await attack(slot.netns, [*attempts, ["udp", slot.gateway, ports.datagrams]]) == [REFUSED, REFUSED, "EHOSTUNREACH"]
        other = await pool.acquire()
        inside(other.netns, lambda: nftables.apply("flush ruleset"))
        assert await attack(other.netns, attempts) == [REFUSED, REFUSED]

    guarded(tmp_path, monkeypatch, EgressPolicy.of(False, ["good.example"]), scenario)


def test_a_live_change_breaks_off_what_the_proxy_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        def fetch(host: str) -> socket.socket:
            connection = inside(slot.netns, lambda: socket.create_connection((OTHER, 80), 5))
            connection.sendall(request(host, "Upgrade: echo", target="/echo").encode())
            return connection

        kept, cut = await asyncio.to_thread(fetch, "good.example"), await asyncio.to_thread(fetch, "evil.example")
        for connection in (kept, cut):
            assert (await asyncio.to_thread(connection.recv, 12)) == b"HTTP/1.1 101"
        await guard.change(EgressPolicy.of(False, ["good.example"]))
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(read_to_the_end, cut)
        kept.sendall(b"still\r\n")
        seen = b""
        while b"still" not in seen:
            seen += await asyncio.to_thread(kept.recv, 100)
        await guard.change(EgressPolicy.of(False))
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(kept.recv, 100)
        assert await attack(slot.netns, [["tls", PUBLIC, 443, "good.example"]]) == [REFUSED]
        kept.close()
        cut.close()

    guarded(tmp_path, monkeypatch, EgressPolicy.of(False, ["good.example", "evil.example"]), scenario)


def test_what_was_denied_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()

    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        attempts: list[list[object]] = [["tcp", METADATA, 80], ["tls", PUBLIC, 443, "evil.example"], ["dns", "9.9.9.9", "evil.example", A]]
        await attack(slot.netns, [*attempts, ["udp", PUBLIC, 443]])
        await guard.change(EgressPolicy.of(deny=[OTHER]))
        await attack(slot.netns, [["tcp", OTHER, 8080]])
        seen = {(one.destination, one.port, one.protocol, one.rule) for one in guard.denials()}
        assert seen == {
            (METADATA, 80, "tcp", "not on the public internet"),
            ("evil.example", 443, "tcp", "no rule of allow names it"),
            ("evil.example", 53, "dns", "no rule of allow names it"),
            (PUBLIC, 443, "udp", "allow_internet_access: false"),
            (OTHER, 8080, "tcp", f"deny {OTHER}"),
        }
        told = {(fields["destination"], fields["port"]) for event, fields in events.seen if event == "network.denied"}
        assert told == {(one[0], one[1]) for one in seen}
        assert {fields["id"] for event, fields in events.seen if event == "network.denied"} == {"sb1"}

    guarded(tmp_path, monkeypatch, EgressPolicy.of(False, ["good.example"]), scenario, events)


def test_a_flood_of_denials_is_kept_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()

    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        await attack(slot.netns, [["tcp", PRIVATE, port] for port in range(1000, 1500)])
        assert 1 <= len(guard.denials()) <= 60
        assert len([event for event, _ in events.seen if event == "network.denied"]) <= 60

    guarded(tmp_path, monkeypatch, EgressPolicy(), scenario, events)


def test_emptied_host_rules_leave_the_inner_wall_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        nftables.apply("flush ruleset")
        # What the proxy would be given goes out as it is, and no answer finds its way back.
        assert await attack(slot.netns, [["tcp", OTHER, 80], ["tcp", OTHER, 8080], ["tcp", METADATA, 80]]) == ["silence", REFUSED, REFUSED]
        await pool.acquire()
        await pool.warm()
        inside(slot.netns, lambda: nftables.apply("flush ruleset"))
        assert await attack(slot.netns, [["tcp", OTHER, 8080], ["tcp", METADATA, 8080]]) == [REFUSED, REFUSED]
        nftables.apply("flush ruleset")
        other = await pool.acquire()
        await (await pool.guard(other, "sb2", EgressPolicy())).change(EgressPolicy.of(False))
        assert (await attack(slot.netns, [["tls", OTHER, 443, "good.example"]])) == [f"reached: {PUBLIC} good.example"]

    guarded(tmp_path, monkeypatch, EgressPolicy.of(False, ["good.example"]), scenario)


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_change_that_fails_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        calls, apply = 0, nftables.apply

        def failing(text: str, *, check_only: bool = False) -> None:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise InfrastructureError("injected")
            apply(text, check_only=check_only)

        with monkeypatch.context() as patched:
            patched.setattr(nftables, "apply", failing)
            with pytest.raises(InfrastructureError, match="injected"):
                await guard.change(EgressPolicy.of(allow=["good.example"], deny=["evil.example"]))
        assert await attack(slot.netns, [["tcp", OTHER, 8080], ["tcp", PRIVATE, 80]]) == [REFUSED, REFUSED]
        assert guard.policy == EgressPolicy.of(False)
        await guard.change(EgressPolicy())
        assert (await attack(slot.netns, [["tcp", OTHER, 8080]]))[0].startswith("reached")

    guarded(tmp_path, monkeypatch, EgressPolicy.of(False), scenario)


def test_bandwidth_is_limited_and_freed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        def rates() -> list[str]:
            shown = (
                lab.tell("tc", "qdisc", "show", "dev", slot.interface),
                lab.tell("tc", "-n", slot.netns.name, "qdisc", "show", "dev", "eth0"),
            )
            return [text[text.index("rate") : text.index(" lat")] if "tbf" in text else "none" for text in shown]

        assert rates() == ["rate 8Mbit burst 20000b", "rate 4Mbit burst 16Kb"]
        assert (await attack(slot.netns, [["tcp", PUBLIC, 80]]))[0].startswith("reached")
        await guard.change(EgressPolicy.of(download=2_000_000))
        assert rates() == ["rate 16Mbit burst 40000b", "none"]
        await guard.change(EgressPolicy())
        assert rates() == ["none", "none"]

    guarded(tmp_path, monkeypatch, EgressPolicy.of(upload=500_000, download=1_000_000), scenario)


def test_a_guard_that_is_closed_changes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, pool: NetworkPool, slot: NetworkSlot, guard: Guard) -> None:
        await guard.close()
        await guard.close()
        assert guard.denials() == ()
        with pytest.raises(InvalidState, match="gone"):
            await guard.change(EgressPolicy())

    guarded(tmp_path, monkeypatch, EgressPolicy.of(False, ["good.example"]), scenario)
