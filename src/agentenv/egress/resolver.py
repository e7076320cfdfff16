"""Names looked up for sandboxes: by the host, of the host's own name servers, IPv4 only."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from dataclasses import dataclass, field

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver

from agentenv.egress.own_addresses import is_own
from agentenv.egress.policy import EgressPolicy

LONGEST_LOOKUP = 5.0
_MOST_AT_ONCE = 64
_SHORTEST_KEPT, _LONGEST_KEPT = 5.0, 300.0
_MOST_KEPT = 4096


class NoSuchName(Exception):
    """The name does not exist, or has no IPv4 address."""


class LookupFailed(Exception):
    """No name server answered in time, or none with an answer."""


def _of_this_host() -> dns.asyncresolver.Resolver:
    try:
        return dns.asyncresolver.Resolver()
    except dns.resolver.NoResolverConfiguration:
        return dns.asyncresolver.Resolver(configure=False)


@dataclass(slots=True)
class Resolver:
    """Looks names up and keeps the answers for as long as their owners say (5 s to 5 min). One for all sandboxes of a node.

    `source`: by default what /etc/resolv.conf says.
    """

    source: dns.asyncresolver.Resolver = field(default_factory=lambda: _of_this_host())
    _answers: dict[str, tuple[float, tuple[ipaddress.IPv4Address, ...]]] = field(default_factory=dict)
    _turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_AT_ONCE))

    async def lookup(self, name: str) -> tuple[tuple[ipaddress.IPv4Address, ...], int]:
        """The IPv4 addresses of a host and for how many seconds they hold. Raises `NoSuchName`, `LookupFailed`."""
        now = time.monotonic()
        until, addresses = self._answers.get(name, (0.0, ()))
        if until <= now:
            async with self._turn:
                addresses, seconds = await self._ask(name)
            until = now + seconds
            self._keep(name, until, addresses)
        if not addresses:
            raise NoSuchName(name)
        return addresses, max(1, int(until - now))

    async def _ask(self, name: str) -> tuple[tuple[ipaddress.IPv4Address, ...], float]:
        try:
            answer = await self.source.resolve(name, "A", search=False, lifetime=LONGEST_LOOKUP)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return (), _SHORTEST_KEPT
        except (dns.exception.DNSException, OSError) as error:
            raise LookupFailed(f"{name}: {error}") from error
        ttl = 0 if answer.rrset is None else answer.rrset.ttl
        addresses = tuple(ipaddress.IPv4Address(record.address) for record in answer if record.rdtype == dns.rdatatype.A)
        return addresses, min(max(float(ttl), _SHORTEST_KEPT), _LONGEST_KEPT)

    def _keep(self, name: str, until: float, addresses: tuple[ipaddress.IPv4Address, ...]) -> None:
        if len(self._answers) >= _MOST_KEPT:
            self._answers.pop(next(iter(self._answers)))
        self._answers.pop(name, None)
        self._answers[name] = until, addresses


def reachable(addresses: tuple[ipaddress.IPv4Address, ...], policy: EgressPolicy, name: str, port: int) -> list[ipaddress.IPv4Address]:
    """Those of a host's addresses to which a sandbox with `policy` may be connected: never the host's own, nor others off the internet.

    Whoever owns an allowed name decides what it resolves to, so only address rules open what is not public.
    """
    by_name = policy.names_allowed(name, port or None)
    return [address for address in addresses if _may_reach(address, policy, port, by_name)]


def _may_reach(address: ipaddress.IPv4Address, policy: EgressPolicy, port: int, by_name: bool) -> bool:
    rule = policy.judge_address(address, port)
    if rule is None:
        named = any(block.network.prefixlen == 32 and block.matches(address, port) for block in policy.allowed_blocks)
        return named or not is_own(address)
    return by_name and not EgressPolicy().judge_address(address, port) and not is_own(address)
