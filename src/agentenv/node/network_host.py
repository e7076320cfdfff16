"""The part of the network that a machine has once: the rules, forwarding, and which owners take part.

Interfaces, namespaces and rules are the machine's, not one AGENTENV_HOME's, so this state lies in /run and goes with a reboot as they do.
More exactly they are those of a network namespace, as a container has one of its own; the state of each has its inode number as its name:
`pools/<owner>/` is locked by that owner for as long as it lives, and holds its address range; `ip_forward` what to put back at the end.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import shutil
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agentenv.egress import nftables
from agentenv.egress.rules import TABLE, no_host_chains
from agentenv.errors import InfrastructureError
from agentenv.images.held import Held, claim, wait_for
from agentenv.node import network_policy, network_slots

STATE = Path("/run/agentenv/network")
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


@dataclass(frozen=True, slots=True)
class NetworkProbe:
    """Whether sandboxes can have a network here; if not, why and how to mend it. `notes` say what works less well than it could."""

    usable: bool
    reason: str | None = None
    remedy: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Membership:
    """An owner's part in the network: where its slots' addresses come from and what they are told."""

    owner: str
    slot_range: ipaddress.IPv4Network
    nameservers: tuple[str, ...]
    mtu: int
    lock: Held


def state_directory() -> Path:
    """Where the state of the network lies in which the calling thread is."""
    return STATE / str(Path("/proc/thread-self/ns/net").stat().st_ino)


def probe() -> NetworkProbe:
    """Asks the kernel, without changing anything, whether it would take the rules; blocks for some milliseconds."""
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    ports = "Published ports work all the same."
    if missing:
        return NetworkProbe(False, f"{' and '.join(missing)} not found.", f"Install iproute2 and nftables. {ports}")
    if os.geteuid() != 0:
        return NetworkProbe(
            False, "a network for sandboxes takes interfaces and rules of the host, which need root.", f"Run as root. {ports}"
        )
    nameservers = network_policy.host_nameservers()
    try:
        nftables.apply(network_policy.ruleset(network_policy.SLOT_RANGES, nameservers), check_only=True)
    except nftables.RulesRefused as error:
        words = f"the kernel does not take the rules that keep sandboxes apart: {error.complaint}."
        return NetworkProbe(False, words, f"Load nf_tables. {ports}")
    except InfrastructureError as error:
        return NetworkProbe(False, error.message, f"{error.remedy} {ports}")
    notes = []
    if not nameservers:
        notes.append("sandboxes have no name server: the host's own is on loopback, out of their reach; name one in /etc/resolv.conf.")
    if blockers := _foreign_walls():
        notes.append(
            f"the host's own rules may hold sandboxes back: {', '.join(blockers)} drops what it does not know; allow `iifname aev*`."
        )
    return NetworkProbe(True, notes=tuple(notes))


def _foreign_walls() -> list[str]:
    """Chains of others (Docker's, a firewall's) that drop forwarded packets by default: an accept of ours does not overrule them."""
    chains = [entry["chain"] for entry in json.loads(nftables.ask("list chains"))["nftables"] if "chain" in entry]
    return [
        f"{chain['family']} {chain['table']} {chain['name']}"
        for chain in chains
        if chain.get("hook") == "forward" and chain.get("policy") == "drop" and chain["table"] != TABLE
    ]


def _stand(own: Collection[str]) -> bool:
    """Whether the machine's rules are there, with those of the sandboxes behind the interfaces `own`."""
    try:
        for chain in network_policy.BASE_CHAINS:
            if not any("rule" in entry for entry in json.loads(nftables.ask(f"list chain inet {TABLE} {chain}"))["nftables"]):
                return False
        known = nftables.ask(f"list map inet {TABLE} forward_of")
    except nftables.RulesRefused:
        return False
    return all(f'"{interface}"' in known for interface in own)


def _give_back(waited: asyncio.Future[Held]) -> None:
    if not waited.cancelled() and waited.exception() is None:
        waited.result().release()


class NetworkHost:
    """Joins and leaves the machine's network, under one lock for all owners."""

    def __init__(self, state: Path | None = None) -> None:
        """`state`: by default that of the network in which this is called."""
        self._state = state or state_directory()
        self._pools = self._state / "pools"
        self._applied = ""

    async def join(self, owner: str, home: Path) -> Membership:
        """Puts the rules in force, then lets packets be forwarded. `home` is written down for who wonders whose the slots are.

        Raises `InfrastructureError` when no address range is free or a tool fails; then nothing has changed for this owner.
        """
        async with self._exclusive():
            directory = self._pools / owner
            directory.mkdir(mode=0o700)
            lock = wait_for(directory)
            joined = False
            try:
                slot_range = network_policy.choose_range(await network_slots.host_routes())
                if slot_range is None:
                    raise InfrastructureError(
                        f"every address range for sandboxes overlaps a route of this host ({', '.join(network_policy.SLOT_RANGES)}).",
                        remedy="Remove the route that covers them all, or run without `network.enabled`.",
                    )
                (directory / "range").write_text(str(slot_range))
                (directory / "home").write_text(str(home))
                mtu = await network_slots.route_mtu()
                await self._apply_rules()
                self._forward_packets()
                joined = True
            finally:
                if not joined:
                    shutil.rmtree(directory)
                    lock.release()
                    await self._clear_if_unused()
            return Membership(owner, slot_range, network_policy.host_nameservers(), mtu, lock)

    async def enforce(self, own: Mapping[str, str]) -> None:
        """Puts the rules in force again where somebody has emptied the host's; connections go on.

        `own` are those of this owner's sandboxes, by their interfaces.
        """
        async with self._exclusive():
            if self._rules() != self._applied or not await asyncio.to_thread(_stand, own):
                await self._apply_rules("".join(own.values()))

    async def leave(self, membership: Membership) -> None:
        """Ends an owner's part; with the last one go the rules, and forwarding is as it was before."""
        async with self._exclusive():
            shutil.rmtree(self._pools / membership.owner, ignore_errors=True)
            membership.lock.release()
            await self._clear_if_unused()

    async def reconcile(self, dead_owners: Collection[str]) -> None:
        """Removes what owners have left who are named, or whose lock is free."""
        if os.geteuid() != 0 or not self._pools.is_dir():
            return
        async with self._exclusive():
            locks = [lock for directory in self._pools.iterdir() if (lock := claim(directory)) is not None]
            dead = {lock.directory.name for lock in locks} | set(dead_owners)
            owned = network_slots.owned_names()
            names = [name for owner in dead for name in owned.get(owner, ())]
            if names:
                # The rules first: the next sandbox behind an interface of that name must not find them.
                await asyncio.to_thread(nftables.apply, no_host_chains(network_slots.interfaces_of(names)))
            await network_slots.destroy_namespaces(names)
            for owner in dead:
                shutil.rmtree(self._pools / owner, ignore_errors=True)
            for lock in locks:
                lock.release()
            if dead:
                await self._clear_if_unused()

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        self._pools.mkdir(mode=0o700, parents=True, exist_ok=True)
        # In a thread: another pool of this very process may have the lock, and needs the event loop to give it back.
        waiting = asyncio.ensure_future(asyncio.to_thread(wait_for, self._state))
        try:
            lock = await asyncio.shield(waiting)
        except asyncio.CancelledError:
            # The thread goes on waiting, and nobody would give back what it gets.
            waiting.add_done_callback(_give_back)
            raise
        try:
            yield
        finally:
            lock.release()

    async def _apply_rules(self, own: str = "") -> None:
        rules = self._rules()
        await asyncio.to_thread(nftables.apply, rules + own)
        self._applied = rules

    def _rules(self) -> str:
        ranges = {path.read_text() for path in self._pools.glob("*/range")}
        return network_policy.ruleset(sorted(ranges), network_policy.host_nameservers())

    def _forward_packets(self) -> None:
        if _FORWARDING.read_text().strip() == "0":
            (self._state / "ip_forward").write_text("0")
            _FORWARDING.write_text("1")

    def _forward_as_before(self) -> None:
        before = self._state / "ip_forward"
        if before.exists():
            _FORWARDING.write_text(before.read_text())
            before.unlink()

    async def _clear_if_unused(self) -> None:
        if any(self._pools.iterdir()):
            return
        await asyncio.to_thread(nftables.apply, f"add table inet {TABLE}\ndelete table inet {TABLE}\n")
        self._forward_as_before()
