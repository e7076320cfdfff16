"""What one running sandbox may reach: its policy on both sides of its link, its proxy where names matter, and what it was refused."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentenv.egress import denials, nftables, rules
from agentenv.egress.denials import Denial, DenialLog, Packet
from agentenv.egress.policy import EgressPolicy
from agentenv.egress.shaping import shape
from agentenv.egress.wall import Wall
from agentenv.errors import InvalidState
from agentenv.monitoring import EventSink

if TYPE_CHECKING:
    from agentenv.egress.proxy import EgressProxy
    from agentenv.egress.resolver import Resolver


class Link(Protocol):
    """The part of a network slot that is guarded."""

    @property
    def netns(self) -> Path: ...

    @property
    def interface(self) -> str: ...

    @property
    def gateway(self) -> str: ...

    @property
    def wall(self) -> Wall: ...


class Guard:
    """Guards the link of one sandbox from `open` to `close`. A new link has the default policy, for which nothing has to be done."""

    def __init__(
        self, sandbox: str, link: Link, resolver: Callable[[], Resolver], events: EventSink, mend: Callable[[], Awaitable[None]]
    ) -> None:
        """`mend` puts the machine's own rules in force again, without which there is nothing that leads to the sandbox's."""
        self.policy = EgressPolicy()
        self._link = link
        self._resolver = resolver
        self._mend = mend
        self._log = DenialLog(sandbox, events)
        self._proxy: EgressProxy | None = None
        self.proxy_ports: rules.ProxyPorts | None = None
        self._turn = asyncio.Lock()
        self._on_host = False
        self._settled = True
        """Whether all that is in force is `policy`, and not in part what a change would have made of it that failed."""
        self._closed = False
        asyncio.get_running_loop().add_reader(link.wall.refusals, self._heard)

    @property
    def interface(self) -> str:
        """The host's end of the link."""
        return self._link.interface

    def denials(self) -> tuple[Denial, ...]:
        """What the sandbox was refused, the last 500 times, the oldest first."""
        self._heard()
        return self._log.entries()

    def host_rules(self) -> str:
        """What of the host's rules is about this sandbox, to be put in force again where somebody has emptied them."""
        return rules.host_chains(self._link.interface, self.policy, self.proxy_ports) if self._on_host else ""

    async def change(self, policy: EgressPolicy) -> None:
        """Puts `policy` in the place of the present one. While that happens only what both allow gets through.

        Raises `InfrastructureError` or `OSError` where it cannot be; then what is allowed is at most what either allows. Not to be
        cancelled half-way: threads go on.
        """
        async with self._turn:
            if self._closed:
                raise InvalidState("the sandbox's network is gone.")
            if policy == self.policy and self._settled:
                return
            self._settled = False
            proxy, ports = await self._proxy_for(policy)
            try:
                self._on_host = True
                await self._apply_on_host(rules.host_chains(self._link.interface, policy, ports))
                await asyncio.to_thread(self._link.wall.change, policy)
                if (policy.upload, policy.download) != (self.policy.upload, self.policy.download):
                    await asyncio.to_thread(shape, self._link.interface, self._link.netns, policy)
            except BaseException:
                if proxy is not None and proxy is not self._proxy:
                    await proxy.close()
                raise
            before, self._proxy, self.proxy_ports, self.policy, self._settled = self._proxy, proxy, ports, policy, True
            if before is not None:
                before.change(policy)
                if before is not proxy:
                    await before.close()

    async def close(self) -> None:
        """Guards no more: the link is about to go. Idempotent."""
        async with self._turn:
            if self._closed:
                return
            self._closed = True
            self._heard()
            asyncio.get_running_loop().remove_reader(self._link.wall.refusals)
            if self._proxy is not None:
                await self._proxy.close()
            if self._on_host:
                await asyncio.to_thread(nftables.apply, rules.no_host_chains([self._link.interface]))

    async def _apply_on_host(self, text: str) -> None:
        try:
            await asyncio.to_thread(nftables.apply, text)
        except nftables.RulesRefused:
            # Somebody may have emptied the host's rules.
            await self._mend()
            await asyncio.to_thread(nftables.apply, text)

    async def _proxy_for(self, policy: EgressPolicy) -> tuple[EgressProxy | None, rules.ProxyPorts | None]:
        """The proxy that `policy` needs, the present one where there is one."""
        if not policy.by_name:
            return None, None
        if self._proxy is not None:
            return self._proxy, self.proxy_ports
        # Loaded here: it brings the DNS library, which sandboxes without such rules do without.
        from agentenv.egress.proxy import EgressProxy

        proxy = EgressProxy(self._link.gateway, policy, self._resolver(), self._log)
        return proxy, await proxy.open()

    def _heard(self) -> None:
        if self._link.wall.refusals.fileno() >= 0:
            for packet in denials.waiting(self._link.wall.refusals):
                self._log.add(str(packet.destination), packet.port, packet.protocol, self._rule(packet))

    def _rule(self, packet: Packet) -> str:
        if not isinstance(packet.destination, ipaddress.IPv4Address):
            return "sandboxes have no IPv6"
        rule = self.policy.judge_address(packet.destination, packet.port)
        if rule is None and self.policy.by_name and (packet.protocol, packet.port) == ("udp", 443):
            return "HTTP/3 hides the names that decide here; use TCP"
        return rule or "not allowed"
