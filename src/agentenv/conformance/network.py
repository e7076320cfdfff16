"""Checks of networks: what a sandbox reaches with and without one, and that its rules hold as long as it lives."""

from __future__ import annotations

import json
import socket
import subprocess

from agentenv.conformance.network_lab import ALLOWED, HOST, METADATA, OTHER, PRIVATE, SHARED, Held, Lab, in_lab
from agentenv.conformance.resident import start_resident
from agentenv.conformance.subject import Subject
from agentenv.errors import CapabilityError, InvalidState
from agentenv.isolation.conformance import NotApplicable, check, expect, expect_equal, expect_refusal
from agentenv.isolation.contract import Attachable
from agentenv.sandbox import AsyncSandbox

_TRY = """
import json, socket, sys
reached = []
for host, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((host, port), 3).close()
        reached.append([host, port])
    except OSError:
        pass
print(json.dumps(reached))
"""

_NEVER = (("169.254.169.254", 80), ("10.0.0.1", 80), ("172.16.0.1", 80), ("192.168.0.1", 80), ("100.64.0.1", 80))
"""The cloud's metadata service, and an address out of each private range."""

_PUBLIC = (ALLOWED, OTHER)
_CLOSED = (HOST, PRIVATE, SHARED, METADATA)
_ONE = {"enabled": True, "allow_internet_access": False, "allow": [ALLOWED]}


@check("network.none")
async def none(subject: Subject) -> None:
    """Without a network a sandbox has a loopback of its own, and reaches neither this machine nor anything beyond."""
    sandbox = await subject.sandbox()
    await subject.require(sandbox, "python3")
    names = await sandbox.commands.run("cut -d: -f1 /proc/net/dev | tail -n +3", check=True)
    expect_equal("its interfaces", set(names.stdout.split()) - {"lo"}, set())
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        wanted = [*((address, port) for address in _own_addresses()), ("1.1.1.1", 53), *_NEVER]
        expect_equal("what it reaches", await _reached(sandbox, wanted), [])
    resident = await start_resident(sandbox)
    expect_equal("what it reaches of itself", await _reached(sandbox, [("127.0.0.1", resident.port)]), [["127.0.0.1", resident.port]])


@check("network.unclaimed", unless=("network",))
async def unclaimed(subject: Subject) -> None:
    """A network that the backend does not claim is refused, before anything is started."""
    with expect_refusal("a network", CapabilityError):
        await subject.create(network=True)


@check("network.default", needs=("network",), seconds=300)
async def default(subject: Subject) -> None:
    """A network reaches the internet, and neither this machine, private ranges, the metadata service, nor another sandbox."""
    await in_lab(subject, lambda lab: _expect_reached(lab, {"enabled": True}, list(_PUBLIC)))


@check("network.rules", needs=("network",), seconds=300)
async def rules(subject: Subject) -> None:
    """A network with rules reaches what they allow and nothing else whatever."""
    await in_lab(subject, lambda lab: _expect_reached(lab, _ONE, [ALLOWED]))


@check("network.changed", needs=("network",), seconds=300)
async def changed(subject: Subject) -> None:
    """Rules are changed while a sandbox runs: they hold at once, and connections that they deny end."""

    async def scenario(lab: Lab) -> None:
        sandbox = await _networked(lab, _ONE)
        held = await Held.open(sandbox, ALLOWED)
        expect_equal("what becomes of a line on a connection that is allowed", await held.ask(), "answered")

        async def change(network: dict[str, object], wanted: list[str]) -> None:
            await sandbox.set_network(network)
            expect_equal(f"what it reaches with {network}", await lab.reached(sandbox, [*_PUBLIC, *_CLOSED]), wanted)

        await change({"allow_internet_access": False, "allow": [OTHER]}, [OTHER])
        expect(await held.ask() != "answered", "a line passes on a connection that is denied now.")
        await change({"deny": [OTHER]}, [ALLOWED])
        await change({}, [ALLOWED, OTHER])

    await in_lab(subject, scenario)


@check("network.given-later", needs=("network",), seconds=300)
async def given_later(subject: Subject) -> None:
    """Rules for a sandbox that runs without a network give it one where its machine can be attached, and are refused elsewhere."""

    async def scenario(lab: Lab) -> None:
        sandbox = await lab.subject.create()
        await lab.subject.require(sandbox, "python3")
        expect_equal("what it reaches before", await lab.reached(sandbox, [*_PUBLIC, *_CLOSED]), [])
        rules = {name: value for name, value in _ONE.items() if name != "enabled"}
        if isinstance(lab.subject.node.get(sandbox.id).machine, Attachable):
            await sandbox.set_network(rules)
            expect_equal("what it reaches then", await lab.reached(sandbox, [*_PUBLIC, *_CLOSED]), [ALLOWED])
            return
        with expect_refusal("a network for a sandbox whose machine cannot be attached", InvalidState):
            await sandbox.set_network(rules)
        expect_equal("what it reaches when it was refused one", await lab.reached(sandbox, [*_PUBLIC, *_CLOSED]), [])

    await in_lab(subject, scenario)


@check("network.kept", needs=("network", "filesystem_snapshot", "pause"), seconds=600)
async def kept(subject: Subject) -> None:
    """Rules are kept through a pause, in a fork, through a rollback, and where memory can be kept through a pause to the disk."""

    async def scenario(lab: Lab) -> None:
        sandbox = await _networked(lab, _ONE)

        async def expect_kept(one: AsyncSandbox, when: str) -> None:
            expect_equal(f"what it reaches {when}", await lab.reached(one, [*_PUBLIC, *_CLOSED]), [ALLOWED])

        await sandbox.pause()
        await sandbox.resume()
        await expect_kept(sandbox, "after a pause")
        (child,) = await lab.subject.fork(sandbox, 1)
        await expect_kept(child, "in a fork")
        taken = await lab.subject.snapshot(sandbox)
        await sandbox.rollback(taken)
        await expect_kept(sandbox, "after a rollback")
        if lab.subject.node.get(sandbox.id).capabilities.memory_snapshot:
            await sandbox.pause(to_disk=True)
            await sandbox.resume()
            await expect_kept(sandbox, "after a pause to the disk")

    await in_lab(subject, scenario)


@check("network.after-memory", needs=("network", "memory_snapshot"), seconds=600)
async def after_memory(subject: Subject) -> None:
    """In children that go on from memory the parent's connections to the outside have ended; the parent's own goes on."""

    async def scenario(lab: Lab) -> None:
        parent = await _networked(lab, _ONE)
        if obstacle := lab.subject.node.get(parent.id).memory_obstacle:
            raise NotApplicable(obstacle)
        held = await Held.open(parent, ALLOWED)
        expect_equal("what becomes of a line before the fork", await held.ask(), "answered")
        children = await lab.subject.fork(parent, 2, memory=True)
        for child in children:
            expect_equal("what becomes of a line in a child", await (await held.in_child(child)).ask(), "ended")
            expect_equal("what a child reaches anew", await lab.reached(child, [*_PUBLIC, *_CLOSED]), [ALLOWED])
        expect_equal("what becomes of a line in the parent", await held.ask(), "answered")

    await in_lab(subject, scenario)


async def _expect_reached(lab: Lab, network: dict[str, object], wanted: list[str]) -> None:
    """A sandbox with that network reaches of everything in the lab what is wanted, and of its neighbour and its own host nothing."""
    sandbox, neighbour = await _networked(lab, network), await lab.subject.create(network=True)
    there = await lab.serve_in(neighbour)
    links = await lab.links()
    places = [*_PUBLIC, *_CLOSED, *(host for host, _ in links)]
    # Nothing would be shown by what nobody could reach.
    expect_equal("what the lab's host reaches, where each address has a server", await lab.reached_by_host(places), places)
    expect_equal("what a neighbour reaches of itself", await lab.reached(neighbour, [there]), [there])
    expect_equal("what it reaches", await lab.reached(sandbox, [*places, there, *(other for _, other in links)]), wanted)


async def _networked(lab: Lab, network: dict[str, object]) -> AsyncSandbox:
    sandbox = await lab.subject.create(network=network)
    await lab.subject.require(sandbox, "python3")
    return sandbox


async def _reached(sandbox: AsyncSandbox, wanted: list[tuple[str, int]]) -> list[list[object]]:
    told = await sandbox.commands.run(["python3", "-c", _TRY, json.dumps(wanted)], check=True)
    found: list[list[object]] = json.loads(told.stdout)
    return found


def _own_addresses() -> list[str]:
    """Every IPv4 address of this machine, those of its links to sandboxes included."""
    listed = subprocess.run(["ip", "-j", "-4", "address"], capture_output=True, text=True, check=True).stdout
    return [one["local"] for link in json.loads(listed) for one in link.get("addr_info", ())]


CHECKS = (none, unclaimed, default, rules, changed, given_later, kept, after_memory)
