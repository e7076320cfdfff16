"""The name server of one sandbox: allowed names are answered, for all others nobody is asked, so that nothing leaks in questions."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from agentenv.egress.client_hello import Malformed, host_name
from agentenv.egress.denials import DenialLog
from agentenv.egress.own_addresses import is_own
from agentenv.egress.policy import EgressPolicy, is_named, is_special
from agentenv.egress.resolver import LookupFailed, NoSuchName, Resolver

QUESTIONS_A_SECOND = 100.0
BURST = 200.0
_MOST_ADDRESSES = 16
_LONGEST_TTL = 60
_LARGEST_QUESTION = 512
_STREAM_PATIENCE = 10.0


@dataclass(slots=True)
class Allowance:
    """So many questions a second on average, and `BURST` of them at once."""

    left: float = BURST
    since: float = field(default_factory=time.monotonic)

    def take(self) -> bool:
        """Whether one more is within it."""
        now = time.monotonic()
        self.left = min(BURST, self.left + (now - self.since) * QUESTIONS_A_SECOND)
        self.since = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


class NameServer:
    """Answers questions for IPv4 addresses of the names that `policy` (asked each time) allows.

    A name that is not allowed does not exist (NXDOMAIN). Of an allowed one nothing is told but its addresses: there is no IPv6 in a
    sandbox, and other records are of no use to what connects through the proxy.
    """

    def __init__(self, policy: Callable[[], EgressPolicy], resolver: Resolver, log: DenialLog) -> None:
        self._policy = policy
        self._resolver = resolver
        self._log = log
        self._allowance = Allowance()

    async def answer(self, question: bytes) -> bytes | None:
        """The answer to a message, None for what deserves none (no DNS, or an answer itself)."""
        if len(question) > _LARGEST_QUESTION:
            return None
        try:
            query = dns.message.from_wire(question)
        except (dns.exception.DNSException, ValueError):
            return None
        if query.flags & dns.flags.QR:
            return None
        response = dns.message.make_response(query, recursion_available=True)
        response.set_rcode(await self._fill(query, response))
        return response.to_wire()

    async def _fill(self, query: dns.message.Message, response: dns.message.Message) -> dns.rcode.Rcode:
        """Puts the addresses in, if there are any; returns how it went."""
        if query.opcode() != dns.opcode.QUERY or len(query.question) != 1:
            return dns.rcode.NOTIMP
        question = query.question[0]
        if question.rdclass != dns.rdataclass.IN or not self._allowance.take():
            return dns.rcode.REFUSED
        try:
            name = host_name(question.name.to_text(omit_final_dot=True).encode())
        except Malformed:
            return dns.rcode.NXDOMAIN
        policy = self._policy()
        rule = policy.judge_name(name, None) if name else "no rule of allow names it"
        if rule is not None:
            self._log.add(name, 53, "dns", rule)
            return dns.rcode.NXDOMAIN
        if question.rdtype != dns.rdatatype.A:
            return dns.rcode.NOERROR
        try:
            addresses, seconds = await self._resolver.lookup(name)
        except NoSuchName:
            return dns.rcode.NXDOMAIN
        except LookupFailed:
            return dns.rcode.SERVFAIL
        usable = [str(address) for address in addresses if _may_be_told(address, policy)][:_MOST_ADDRESSES]
        if not usable:
            self._log.add(name, 53, "dns", "it resolves to an address off the public internet")
            return dns.rcode.NXDOMAIN
        response.answer.append(dns.rrset.from_text(question.name, min(seconds, _LONGEST_TTL), "IN", "A", *usable))
        return dns.rcode.NOERROR

    async def serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Questions over one TCP connection (RFC 7766), until the other end closes it or is silent for 10 s."""
        try:
            while True:
                async with asyncio.timeout(_STREAM_PATIENCE):
                    size = int.from_bytes(await reader.readexactly(2), "big")
                    answer = await self.answer(await reader.readexactly(size))
                if answer is None:
                    break
                writer.write(len(answer).to_bytes(2, "big") + answer)
                await writer.drain()
        except (OSError, EOFError, TimeoutError):
            pass
        finally:
            writer.close()


def _may_be_told(address: ipaddress.IPv4Address, policy: EgressPolicy) -> bool:
    """Whether there is a port on which the proxy or the rules could let the sandbox reach that address."""
    if any(address in block.network and (is_named(block) or not is_special(address)) for block in policy.allowed_blocks):
        return True
    return not is_special(address) and not is_own(address)


class Datagrams(asyncio.DatagramProtocol):
    """Questions that come as datagrams; `MOST_AT_ONCE` are answered at the same time, more are dropped."""

    MOST_AT_ONCE = 64

    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None
        self._answering: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the way back."""
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answers in a task of its own."""
        if len(self._answering) < self.MOST_AT_ONCE:
            task = asyncio.get_running_loop().create_task(self._answer(data, addr))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def close(self) -> None:
        """Breaks off what is being answered."""
        if self._transport is not None:
            self._transport.close()
        for task in tuple(self._answering):
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _answer(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = await self._server.answer(data)
        if answer is not None and self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(answer, addr)
