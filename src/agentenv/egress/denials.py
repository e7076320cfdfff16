"""What a sandbox was refused: the kernel tells of packets through netfilter's log, the proxy of names; both end up in one short list."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from agentenv.monitoring import EventSink

LONGEST_LOG = 500
_EVENTS_A_MINUTE = 60
_LARGEST_MESSAGE = 1 << 16

# linux/netlink.h, linux/netfilter/nfnetlink.h, nfnetlink_log.h
_NETLINK_NETFILTER = 12
_ULOG_PACKET, _ULOG_CONFIG = 0x0400, 0x0401
_NLM_F_REQUEST, _NLM_F_ACK, _NLMSG_ERROR = 1, 4, 2
_CFG_CMD, _CFG_MODE, _CFG_QTHRESH, _CMD_BIND, _COPY_PACKET = 1, 2, 5, 1, 2
_SNAP_LENGTH = 64
_PAYLOAD = 9
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp"}


@dataclass(frozen=True, slots=True)
class Denial:
    """One refusal: at `time` (unix seconds) to `destination`, an address or a name, by `rule`. `port` is 0 where there is none."""

    time: float
    destination: str
    port: int
    protocol: str
    rule: str


class DenialLog:
    """The last refusals of one sandbox, also told as events `network.denied`, of which there are 60 a minute at most."""

    def __init__(self, sandbox: str, events: EventSink) -> None:
        self._sandbox = sandbox
        self._events = events
        self._kept: deque[Denial] = deque(maxlen=LONGEST_LOG)
        self._told: deque[float] = deque(maxlen=_EVENTS_A_MINUTE)
        self._untold = 0

    def add(self, destination: str, port: int, protocol: str, rule: str) -> None:
        """Notes one refusal."""
        denial = Denial(time.time(), destination, port, protocol, rule)
        self._kept.append(denial)
        now = time.monotonic()
        if len(self._told) == _EVENTS_A_MINUTE and now - self._told[0] < 60:
            self._untold += 1
            return
        self._told.append(now)
        told = {"destination": destination, "port": port, "protocol": protocol, "rule": rule, "untold": self._untold}
        self._events.emit("network.denied", id=self._sandbox, **told)
        self._untold = 0

    def entries(self) -> tuple[Denial, ...]:
        """The last refusals, the oldest first."""
        return tuple(self._kept)


@dataclass(frozen=True, slots=True)
class Packet:
    """Where a refused packet wanted to go."""

    destination: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int
    protocol: str


def listen(group: int) -> socket.socket:
    """A non-blocking socket that is told of every packet which the rules of the present network namespace log to `group`.

    Raises `OSError` where the kernel has no such log, or another process has the group.
    """
    listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER)
    try:
        _configure(listener, group, _CFG_CMD, bytes([_CMD_BIND]))
        _configure(listener, group, _CFG_MODE, struct.pack("!IBx", _SNAP_LENGTH, _COPY_PACKET))
        _configure(listener, group, _CFG_QTHRESH, struct.pack("!I", 1))  # each at once; by default they are gathered for a second
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _configure(listener: socket.socket, group: int, attribute: int, value: bytes) -> None:
    body = struct.pack("!BBH", socket.AF_UNSPEC, 0, group) + _ATTRIBUTE.pack(4 + len(value), attribute) + value + bytes(-len(value) % 4)
    listener.sendto(_HEADER.pack(16 + len(body), _ULOG_CONFIG, _NLM_F_REQUEST | _NLM_F_ACK, 1, 0) + body, (0, 0))
    _, kind, *_ = _HEADER.unpack_from(answer := listener.recv(_LARGEST_MESSAGE))
    if kind == _NLMSG_ERROR and (code := -struct.unpack_from("=i", answer, _HEADER.size)[0]):
        raise OSError(code, f"{os.strerror(code)} (netfilter log {group})")


def waiting(listener: socket.socket) -> Iterator[Packet]:
    """The packets that `listener` has been told of since the last time. What came faster than it was read is lost."""
    while True:
        try:
            data, (sender, _) = listener.recvfrom(_LARGEST_MESSAGE)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            # The kernel had more to tell than the socket holds.
            continue
        if sender == 0:  # the kernel
            yield from packets(data)


def packets(data: bytes) -> Iterator[Packet]:
    """The packets of which a datagram of the log tells; what makes no sense is passed over."""
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if not _HEADER.size <= length <= len(data):
            return
        if kind == _ULOG_PACKET and (packet := _parse(dict(_attributes(data[_HEADER.size + 4 : length])).get(_PAYLOAD, b""))):
            yield packet
        data = data[length + -length % 4 :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if not _ATTRIBUTE.size <= length <= len(data):
            return
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[length + -length % 4 :]


def _parse(packet: bytes) -> Packet | None:
    """Destination, port and protocol of an IP packet's first bytes (RFC 791, RFC 8200 without extension headers)."""
    if len(packet) >= 20 and packet[0] >> 4 == 4:
        protocol, transport = packet[9], packet[(packet[0] & 15) * 4 :]
        destination: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.IPv4Address(packet[16:20])
    elif len(packet) >= 40 and packet[0] >> 4 == 6:
        protocol, transport = packet[6], packet[40:]
        destination = ipaddress.IPv6Address(packet[24:40])
    else:
        return None
    has_port = protocol in (6, 17) and len(transport) >= 4
    port = struct.unpack_from("!H", transport, 2)[0] if has_port else 0
    return Packet(destination, port, _PROTOCOLS.get(protocol, f"protocol {protocol}"))
