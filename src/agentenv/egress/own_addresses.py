"""Which addresses are this machine's: the kernel's routing table says, by rtnetlink(7).

Binding to an address would not tell: with `net.ipv4.ip_nonlocal_bind=1`, as load balancers have it, every address can be bound to.
"""

from __future__ import annotations

import ipaddress
import socket
import struct

# linux/rtnetlink.h
_NETLINK_ROUTE = 0
_NEW_ROUTE, _GET_ROUTE = 24, 26
_DESTINATION = 1
_LOCAL, _BROADCAST = 2, 3

_REQUEST = 1  # NLM_F_REQUEST, linux/netlink.h
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=8BI")
_ATTRIBUTE = struct.Struct("=HH4s")
_TYPE = _HEADER.size + 7
"""Where in an answer the type of the route stands, the last byte of the eight."""

_LARGEST_ANSWER = 4096


def is_own(address: ipaddress.IPv4Address) -> bool:
    """Whether what is sent to that address stays on this machine, or goes to all of a network that it is in.

    It is this machine's in the network namespace of the calling thread. Takes some microseconds.
    """
    route = _ROUTE.pack(socket.AF_INET, address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    body = route + _ATTRIBUTE.pack(_ATTRIBUTE.size, _DESTINATION, address.packed)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as kernel:
        kernel.sendto(_HEADER.pack(_HEADER.size + len(body), _GET_ROUTE, _REQUEST, 1, 0) + body, (0, 0))
        answer = kernel.recv(_LARGEST_ANSWER)
    _, kind, *_ = _HEADER.unpack_from(answer)
    # Anything else is an error: no packet finds a way there.
    return kind == _NEW_ROUTE and answer[_TYPE] in (_LOCAL, _BROADCAST)
