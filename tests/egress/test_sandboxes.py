"""Real sandboxes and what they reach: an attacker inside tries everything, on each backend that runs here."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.egress import attacker
from tests.egress.egress_lab import OTHER, asked_of_world, needs_openssl, outside_world, request
from tests.machines import debian_or_skip, obtain_or_skip, shared_cache
from tests.node.network_lab import HOST, METADATA, PRIVATE, PUBLIC, Lab, needs_root, run

from agentenv.egress import wall as wall_module
from agentenv.errors import InfrastructureError, InvalidState
from agentenv.isolation import probe_all
from agentenv.isolation.contract import Timeouts
from agentenv.node import Node
from agentenv.node import node as node_module
from agentenv.node.network import NetworkPool
from agentenv.sandbox import AsyncSandbox

pytestmark = [needs_root, needs_openssl]

UNUSABLE = {probe.backend: probe.reason for probe in probe_all() if not probe.usable}
ATTACKER = Path(attacker.__file__).read_text()
A, TXT = 1, 16
REFUSED = {
    "ECONNREFUSED",
    "EPERM",
    "EACCES",
    "EHOSTUNREACH",
    "ENETUNREACH",
    "ECONNRESET",
    "EAFNOSUPPORT",
    "EADDRNOTAVAIL",
    "EINVAL",
    "silence",
}
"""No way in which an attempt may fail is a way in which it got anywhere."""

RULES = {"enabled": True, "allow_internet_access": False, "allow": ["good.example", "*.good.example", f"{OTHER}:8080"]}


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that has what virtual machines need; the test is skipped where that cannot be had."""
    for name in ("qemu", "kernel"):
        obtain_or_skip(name)
    debian_or_skip()
    monkeypatch.setenv("AGENTENV_ARTEFACTS", str(shared_cache() / "artefacts"))
    return shared_cache()


def backend(name: str, *marks: pytest.MarkDecorator) -> object:
    """A parameter of a test: a backend, skipped with the reason where it does not run."""
    return pytest.param(name, marks=[pytest.mark.skipif(name in UNUSABLE, reason=f"no {name} here: {UNUSABLE.get(name)}"), *marks])


def in_lab(
    directory: Path, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Lab, Node], Awaitable[None]], home: Path | None = None
) -> None:
    """Runs `scenario` with a node on a host of its own, with a world around it."""

    async def body(lab: Lab) -> None:
        monkeypatch.setattr(node_module, "NetworkPool", functools.partial(NetworkPool, host=lab.host))
        async with outside_world(lab, monkeypatch), await Node.open(home or directory / "home") as node:
            await scenario(lab, node)

    run(directory, body)


@asynccontextmanager
async def started(node: Node, isolation: str, network: object, **wishes: object) -> AsyncIterator[AsyncSandbox]:
    async with await AsyncSandbox.create(node=node, isolation=isolation, network=network, **wishes) as sandbox:  # type: ignore[arg-type]
        await sandbox.files.write("/root/attacker.py", ATTACKER)
        yield sandbox


async def attack(sandbox: AsyncSandbox, *attempts: list[object]) -> list[str]:
    await sandbox.files.write("/root/attempts.json", json.dumps(attempts))
    result = await sandbox.commands.run('python3 -S /root/attacker.py "$(cat /root/attempts.json)"', timeout=600)
    found: list[str] = json.loads(result.stdout)
    return found


async def outcomes(sandbox: AsyncSandbox, attempts: list[list[object]]) -> dict[str, str]:
    return dict(zip(map(json.dumps, attempts), await attack(sandbox, *attempts), strict=True))


async def attack_everything(lab: Lab, node: Node, isolation: str, **wishes: object) -> None:
    """Every attempt from a sandbox with `RULES`, and what may come of it."""
    async with started(node, isolation, RULES, **wishes) as sandbox, started(node, "namespace", {"enabled": True}) as neighbour:
        servers = lab.serve(None, HOST)
        try:
            there = await neighbour.commands.run("hostname -I || ip -4 -o addr show eth0")
            own = (await sandbox.commands.run("cat /proc/net/route")).stdout.splitlines()
            gateway = next(line.split()[2] for line in own[1:] if line.split()[1] == "00000000")
            gateway = ".".join(str(int(gateway[at : at + 2], 16)) for at in (6, 4, 2, 0))
            targets = [HOST, gateway, there.stdout.split()[0], METADATA, PRIVATE, "100.100.100.200", "192.168.0.1", PUBLIC, OTHER]
            attempts: list[list[object]] = [["tcp", target, port] for target in targets for port in (22, 7777)]
            attempts += [["udp", target, 53] for target in (HOST, gateway, METADATA, PRIVATE)]
            attempts += [["udp", PUBLIC, 443], ["udp", "fd00:ec2::254", 80], ["udp", "2001:db8::1", 53], ["udp", "fe80::1%eth0", 53]]
            attempts += [["raw", target] for target in (HOST, gateway, METADATA, PRIVATE, PUBLIC)]
            attempts += [["http", METADATA, 80, request("good.example")], ["tls", METADATA, 443, "good.example"]]
            found = await outcomes(sandbox, attempts)
            assert {attempt: one for attempt, one in found.items() if one not in REFUSED} == {}
            judged = [
                ["tls", PUBLIC, 443, "evil.example"],
                ["tls", PUBLIC, 443, None],
                ["tls", PUBLIC, 443, "rebind.good.example"],
                ["tls", PUBLIC, 443, "metadata.good.example"],
                ["tls", PUBLIC, 443, "host.good.example"],
            ]
            assert set((await outcomes(sandbox, judged)).values()) == {"TLS: TLSV1_ALERT_ACCESS_DENIED"}
            plain = [
                ["http", PUBLIC, 80, request("evil.example")],
                ["http", PUBLIC, 80, request("good.example", target="http://evil.example/")],
                ["http", PUBLIC, 80, request("good.example:443", method="CONNECT", target="good.example:443")],
                ["http", PUBLIC, 80, request("169.254.169.254", target="/latest/meta-data/")],
            ]
            assert all("403 Forbidden" in one for one in await attack(sandbox, *plain))
            tunnels = [["dns", PUBLIC, f"{'s' * 60}.evil.example", kind, how] for kind in (A, TXT) for how in ("udp", "tcp")]
            assert set(await attack(sandbox, *tunnels)) == {"reached: code 3, 0 records"}
            assert not any("evil" in question for question in await asked_of_world(lab))
            allowed = [["tls", OTHER, 443, "good.example"], ["http", OTHER, 8080, request("evil.example")]]
            first, second = await attack(sandbox, *allowed)
            assert first == f"reached: {PUBLIC} good.example"
            assert f"{OTHER} evil.example" in second
            refused = {one.destination for one in await sandbox.network_log()}
            assert {METADATA, PRIVATE, "evil.example"} <= refused
            (child,) = await sandbox.fork(1)
            assert isinstance(child, AsyncSandbox), child
            async with child:
                again = [["tls", PUBLIC, 443, "evil.example"], ["tls", OTHER, 443, "good.example"], ["tcp", METADATA, 80]]
                assert await attack(child, *again) == ["TLS: TLSV1_ALERT_ACCESS_DENIED", f"reached: {PUBLIC} good.example", "ECONNREFUSED"]
        finally:
            servers.kill()
            servers.communicate()


@pytest.mark.parametrize("isolation", [backend("namespace"), backend("gvisor", pytest.mark.soak)])
def test_an_attacker_gets_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str) -> None:
    in_lab(tmp_path, monkeypatch, lambda lab, node: attack_everything(lab, node, isolation))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_an_attacker_who_is_root_in_a_virtual_machine_gets_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machines: Path) -> None:
    async def scenario(lab: Lab, node: Node) -> None:
        patience = Timeouts(startup=300.0)
        await attack_everything(lab, node, "qemu", image="debian", resources={"memory": "512MiB"}, timeouts=patience)

    in_lab(tmp_path, monkeypatch, scenario, machines)


@pytest.mark.parametrize("isolation", [backend("namespace"), backend("gvisor", pytest.mark.soak)])
def test_rules_are_kept_and_changed_through_a_sandboxes_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str) -> None:
    async def scenario(lab: Lab, node: Node) -> None:
        closed = f"TLS: TLSV1_ALERT_ACCESS_DENIED|reached: {PUBLIC} good.example"

        async def state(sandbox: AsyncSandbox) -> str:
            return "|".join(await attack(sandbox, ["tls", PUBLIC, 443, "evil.example"], ["tls", PUBLIC, 443, "good.example"]))

        async with started(node, isolation, RULES) as sandbox:
            assert await state(sandbox) == closed
            await sandbox.pause()
            await sandbox.resume()
            assert await state(sandbox) == closed
            name = await sandbox.commands.run("python3 -c 'import socket; print(socket.gethostbyname(\"good.example\"))'")
            assert name.stdout.strip() == PUBLIC
            snapshot = await sandbox.snapshot()
            (child,) = await sandbox.fork(1)
            assert isinstance(child, AsyncSandbox)
            async with child:
                assert await state(child) == closed
            await sandbox.set_network({"allow_internet_access": False, "allow": ["evil.example"]})
            assert await state(sandbox) == f"reached: {OTHER} evil.example|TLS: TLSV1_ALERT_ACCESS_DENIED"
            await sandbox.rollback(snapshot)
            assert await state(sandbox) == f"reached: {OTHER} evil.example|TLS: TLSV1_ALERT_ACCESS_DENIED"
            await sandbox.set_network({})
            assert await state(sandbox) == f"reached: {PUBLIC} evil.example|reached: {PUBLIC} good.example"
            other = await AsyncSandbox.connect(sandbox.id, node=node)
            assert [one.destination for one in await other.network_log()]

    in_lab(tmp_path, monkeypatch, scenario)


@pytest.mark.soak
@pytest.mark.parametrize("isolation", [backend("gvisor")])
def test_rules_about_names_hold_after_a_pause_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str) -> None:
    tried: list[list[object]] = [["tls", OTHER, 443, "good.example"], ["tls", PUBLIC, 443, "evil.example"], ["tcp", METADATA, 80]]
    tried += [["dns", PUBLIC, "good.example", A], ["dns", PUBLIC, "evil.example", A]]
    closed = [f"reached: {PUBLIC} good.example", "TLS: TLSV1_ALERT_ACCESS_DENIED", "ECONNREFUSED"]
    closed += [f"reached: code 0, 1 records, {PUBLIC}", "reached: code 3, 0 records"]

    async def scenario(lab: Lab, node: Node) -> None:
        async with started(node, isolation, RULES) as sandbox:
            assert await attack(sandbox, *tried) == closed
            await sandbox.pause(to_disk=True)
            await sandbox.resume()
            assert await attack(sandbox, *tried) == closed
            await sandbox.pause(to_disk=True)
            async with await Node.open(node.home) as other, await AsyncSandbox.connect(sandbox.id, node=other) as elsewhere:
                await elsewhere.resume()
                assert await attack(elsewhere, *tried) == closed, "with another owner"

    in_lab(tmp_path, monkeypatch, scenario)


def test_a_sandbox_without_a_network_is_given_one_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[list[object]] = [["tls", PUBLIC, 443, "evil.example"], ["tls", PUBLIC, 443, "good.example"], ["tcp", METADATA, 80]]
    opened = ["TLS: TLSV1_ALERT_ACCESS_DENIED", f"reached: {PUBLIC} good.example", "ECONNREFUSED"]
    rules = {"allow_internet_access": False, "allow": ["good.example"]}

    async def scenario(lab: Lab, node: Node) -> None:
        async with started(node, "namespace", False) as sandbox:
            assert await attack(sandbox, *tried) == ["ENETUNREACH"] * 3
            with pytest.raises(InvalidState, match="has no network"):
                await sandbox.network_log()
            await sandbox.pause()
            with pytest.raises(InvalidState, match="paused and has no network"):
                await sandbox.set_network(rules)
            await sandbox.resume()
            before = await sandbox.snapshot()
            await sandbox.set_network(rules)
            assert await attack(sandbox, *tried) == opened
            assert {"evil.example", METADATA} <= {one.destination for one in await sandbox.network_log()}
            name = await sandbox.commands.run("python3 -c 'import socket; print(socket.gethostbyname(\"good.example\"))'")
            assert name.stdout.strip() == PUBLIC
            (child,) = await sandbox.fork(1)
            assert isinstance(child, AsyncSandbox)
            async with child:
                assert await attack(child, *tried) == opened
            await sandbox.rollback(before)
            assert await attack(sandbox, *tried) == opened
        await node.close()
        lab.wait_for_links_to_go()
        assert lab.leftovers() == {}

    in_lab(tmp_path, monkeypatch, scenario)


def test_what_fails_while_it_is_given_a_network_leaves_it_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(lab: Lab, node: Node) -> None:
        async with started(node, "namespace", False) as sandbox:
            with monkeypatch.context() as broken:
                broken.setattr(wall_module.rules, "inner_change", lambda *_: "no rules")
                with pytest.raises(InfrastructureError):
                    await sandbox.set_network({"allow_internet_access": False, "allow": [PUBLIC]})
            links = await sandbox.commands.run("ls /sys/class/net 2>/dev/null || cut -d: -f1 /proc/net/dev | tail -n +3")
            assert "eth0" not in links.stdout
            assert await attack(sandbox, ["tcp", PUBLIC, 443]) == ["ENETUNREACH"]
            await sandbox.set_network({"allow_internet_access": False, "allow": [PUBLIC]})
            assert (await attack(sandbox, ["tls", PUBLIC, 443, "good.example"]))[0].startswith("reached")

    in_lab(tmp_path, monkeypatch, scenario)


@pytest.mark.parametrize("isolation", [backend("gvisor", pytest.mark.soak)])
async def test_a_backend_that_gives_a_network_at_the_start_only_says_so(tmp_path: Path, isolation: str) -> None:
    async with await Node.open(tmp_path / "home") as node, await AsyncSandbox.create(node=node, isolation=isolation) as sandbox:
        with pytest.raises(InvalidState, match="at the start only"):
            await sandbox.set_network({"allow": ["example.com"]})
        assert (await sandbox.commands.run("echo goes on")).stdout == "goes on\n"
