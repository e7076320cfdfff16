"""The proxy of one sandbox whose policy has names in it: what the sandbox connects to is decided by the name that it asks there for.

The kernel hands over connections to the ports on which names decide, wherever they were meant for. The proxy reads whom the first
message is for (TLS: the server's name, else HTTP: the host), looks that name up itself and connects there: an address with another
name's label on it leads to the name. Nothing else is looked at, and TLS goes on end to end.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from agentenv.egress.client_hello import HANDSHAKE, Malformed, server_name
from agentenv.egress.denials import DenialLog
from agentenv.egress.http_head import read_head
from agentenv.egress.names import Datagrams, NameServer
from agentenv.egress.policy import EgressPolicy
from agentenv.egress.resolver import LookupFailed, NoSuchName, Resolver, reachable
from agentenv.egress.rules import ProxyPorts
from agentenv.egress.streams import BUFFER, pump, reset

MOST_CONNECTIONS = 256
_HELLO_PATIENCE = 10.0
_CONNECT_PATIENCE = 10.0
_ORIGINAL_DESTINATION = 80  # SO_ORIGINAL_DST, linux/netfilter_ipv4.h
_TLS_REFUSAL = bytes.fromhex("15030300020231")  # a fatal alert, access_denied (RFC 8446 section 6.2)
_HTTP_REFUSAL = b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a connection turned out to be for: the host `name`, and what has been read and is to be passed on."""

    name: str
    tls: bool
    passed_on: bytes
    upgrade: bool = False


class _Refused(Exception):
    """The connection is not allowed, by `rule`; `tls` is None where it is not known what was spoken."""

    def __init__(self, rule: str, *, name: str = "", tls: bool | None = None) -> None:
        super().__init__(rule)
        self.rule, self.name, self.tls = rule, name, tls


_Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class EgressProxy:
    """Serves the sandbox whose packets come to `gateway`, an address of this machine, from `open` to `close`."""

    def __init__(self, gateway: str, policy: EgressPolicy, resolver: Resolver, log: DenialLog) -> None:
        self._gateway = gateway
        self._policy = policy
        self._resolver = resolver
        self._log = log
        self._names = NameServer(lambda: self._policy, resolver, log)
        self._held = AsyncExitStack()
        self._serving: set[asyncio.Task[None]] = set()
        self._joined: dict[asyncio.Task[None], tuple[str, int, ipaddress.IPv4Address]] = {}

    async def open(self) -> ProxyPorts:
        """Listens on free ports. Raises `OSError`; then nothing listens."""
        async with AsyncExitStack() as stack:
            streams = await asyncio.start_server(self._begin(self._connected), self._gateway, 0, limit=BUFFER, backlog=256)
            stack.callback(streams.close)
            questions = await asyncio.start_server(self._begin(self._names.serve_stream), self._gateway, 0, limit=BUFFER)
            stack.callback(questions.close)
            loop = asyncio.get_running_loop()
            transport, datagrams = await loop.create_datagram_endpoint(lambda: Datagrams(self._names), (self._gateway, 0))
            stack.push_async_callback(datagrams.close)
            self._held = stack.pop_all()
        connections, asked = (server.sockets[0].getsockname()[1] for server in (streams, questions))
        return ProxyPorts(connections, transport.get_extra_info("sockname")[1], asked)

    def change(self, policy: EgressPolicy) -> None:
        """From now on `policy` counts; connections that it does not allow are broken off."""
        self._policy = policy
        for task, (name, port, address) in self._joined.items():
            if policy.judge_name(name, port) is not None or not reachable((address,), policy, name, port):
                self._log.add(name, port, "tcp", "the policy was changed")
                task.cancel()

    async def close(self) -> None:
        """Stops listening and breaks every connection off; idempotent."""
        await self._held.aclose()
        for task in tuple(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _begin(self, serve: _Serve) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        """What takes a new connection: it is served in a task of its own, as long as there is room for one more."""

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(self._serving) >= MOST_CONNECTIONS:
                reset(writer)
                return
            task = asyncio.get_running_loop().create_task(serve(reader, writer))
            self._serving.add(task)
            task.add_done_callback(lambda task: self._over(task, writer))

        return begin

    def _over(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        """Ends a connection with its task. What nobody foresaw is told by the event loop's own handler, when the task is collected."""
        self._serving.discard(task)
        self._joined.pop(task, None)
        reset(writer)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A side that breaks off is no fault of ours; the other learns it as a reset.
        with suppress(OSError, EOFError):
            address, port = _meant_for(writer)
            try:
                await self._serve(reader, writer, port)
            except _Refused as refusal:
                self._log.add(refusal.name or str(address), port, "tcp", refusal.rule)
                await _refuse(writer, refusal)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        wish = await _read_wish(reader)
        out_reader, out_writer = await self._connect(wish, port)
        try:
            out_writer.write(wish.passed_on)
            await out_writer.drain()
            if wish.upgrade and not await _agreed(out_reader, writer):
                # Whatever the sandbox still sends on this connection could be a request that names another host.
                await pump(out_reader, writer)
            else:
                await _join((reader, out_writer), (out_reader, writer))
            writer.close()
            await writer.wait_closed()
        finally:
            reset(out_writer)

    async def _connect(self, wish: _Wish, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        rule = self._policy.judge_name(wish.name, port)
        if rule is not None:
            raise _Refused(rule, name=wish.name, tls=wish.tls)
        try:
            addresses, _ = await self._resolver.lookup(wish.name)
        except (NoSuchName, LookupFailed) as error:
            raise _Refused("its name has no address", name=wish.name, tls=wish.tls) from error
        candidates = reachable(addresses, self._policy, wish.name, port)
        if not candidates:
            raise _Refused("it resolves to an address off the public internet", name=wish.name, tls=wish.tls)
        address, streams = await _first(candidates, port)
        # The policy may have been changed meanwhile.
        if self._policy.judge_name(wish.name, port) is not None or not reachable((address,), self._policy, wish.name, port):
            reset(streams[1])
            raise _Refused("the policy was changed", name=wish.name, tls=wish.tls)
        task = asyncio.current_task()
        assert task is not None
        self._joined[task] = wish.name, port, address
        return streams


def _meant_for(writer: asyncio.StreamWriter) -> tuple[ipaddress.IPv4Address, int]:
    """Where a connection that the kernel has redirected was sent to."""
    endpoint: socket.socket = writer.get_extra_info("socket")
    port, address = struct.unpack_from("!2xH4s", endpoint.getsockopt(socket.SOL_IP, _ORIGINAL_DESTINATION, 16))
    return ipaddress.IPv4Address(address), port


async def _read_wish(reader: asyncio.StreamReader) -> _Wish:
    data, tls = b"", None
    try:
        async with asyncio.timeout(_HELLO_PATIENCE):
            while more := await reader.read(BUFFER):
                data += more
                tls = data[0] == HANDSHAKE
                wish = _understood(data, tls)
                if wish is not None:
                    return wish
    except Malformed as error:
        raise _Refused(f"it begins with no name that can be checked: {error}", tls=tls) from error
    except TimeoutError as error:
        raise _Refused("it did not say in time whom it is for", tls=tls) from error
    raise _Refused("it ended before it said whom it is for", tls=tls)


def _understood(data: bytes, tls: bool) -> _Wish | None:
    if tls:
        name = server_name(data)
        wish = None if name is None else _Wish(name, True, data)
    else:
        read = read_head(data)
        wish = None if read is None else _Wish(read[0].host, False, read[0].passed_on + read[1], read[0].upgrade)
        if read is not None and read[0].upgrade and read[1]:
            raise Malformed("something behind a request to change the protocol")
    if wish is not None and not wish.name:
        raise Malformed("it names no host")
    return wish


async def _first(
    addresses: list[ipaddress.IPv4Address], port: int
) -> tuple[ipaddress.IPv4Address, tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """The first of the addresses that takes a connection. Raises `OSError` where none does."""
    for address in addresses[:-1]:
        try:
            return address, await _open(address, port)
        except OSError:
            continue
    return addresses[-1], await _open(addresses[-1], port)


async def _open(address: ipaddress.IPv4Address, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(_CONNECT_PATIENCE):  # TimeoutError is an OSError
        return await asyncio.open_connection(str(address), port, limit=BUFFER)


async def _join(*ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Carries bytes along all `ways` until each has come to its end. Raises `ConnectionResetError` when one breaks off."""
    whole = False
    try:
        async with asyncio.TaskGroup() as group:
            for reader, writer in ways:
                group.create_task(pump(reader, writer))
        whole = True
    except* OSError:
        whole = False
    if not whole:
        raise ConnectionResetError("one side broke off")


async def _agreed(server: asyncio.StreamReader, client: asyncio.StreamWriter) -> bool:
    """Whether the server goes over to another protocol; the head of its answer has been passed on."""
    try:
        head = await server.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ConnectionResetError("no answer that could be understood") from error
    client.write(head)
    await client.drain()
    return head[:13].startswith((b"HTTP/1.1 101 ", b"HTTP/1.0 101 "))


async def _refuse(writer: asyncio.StreamWriter, refusal: _Refused) -> None:
    """Tells a client of the refusal in the protocol that it speaks, where that is known."""
    if refusal.tls is None:
        return
    reason = f"This sandbox may not connect to {refusal.name or 'there'}: {refusal.rule}.\n".encode()
    writer.write(_TLS_REFUSAL if refusal.tls else _HTTP_REFUSAL % (len(reason), reason))
    try:
        async with asyncio.timeout(_CONNECT_PATIENCE):
            writer.close()
            await writer.wait_closed()
    except OSError:
        return
