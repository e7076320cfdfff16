"""HTTP to the public internet, and to hosts that whoever runs this process has named, but nowhere else.

A name is looked up here, and the connection goes to the very address that was judged: an answer that changes between the two would
otherwise lead to this machine's own services or its cloud's metadata.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Collection

import httpx

from agentenv.egress.policy import is_special
from agentenv.errors import CapabilityError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class PublicTransport(httpx.BaseTransport):
    """Sends each request to an address that was judged before. May be used from several threads."""

    def __init__(self, named: Collection[str] = ()) -> None:
        self._named = frozenset(named)
        self._turn = threading.Lock()
        self._trusted = httpx.create_ssl_context()
        # One for each host, so that no connection to one serves another that has the same address.
        self._inner: dict[str, httpx.HTTPTransport] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Raises `CapabilityError` for a host that is not to be reached, what httpx raises for one that is out of reach."""
        url = request.url
        transport = self._for(f"{url.scheme}://{url.netloc.decode('ascii')}")
        if url.host in self._named or url.netloc.decode("ascii") in self._named:
            return transport.handle_request(request)
        addresses = public_addresses(url.host, url.port or (443 if url.scheme == "https" else 80))
        for number, address in enumerate(addresses, 1):
            try:
                return transport.handle_request(_at(request, address))
            except httpx.ConnectError:
                if number == len(addresses):
                    raise
        raise AssertionError("there is at least one address")

    def close(self) -> None:
        """Ends the connections."""
        with self._turn:
            for transport in self._inner.values():
                transport.close()
            self._inner.clear()

    def _for(self, origin: str) -> httpx.HTTPTransport:
        with self._turn:
            return self._inner.setdefault(origin, httpx.HTTPTransport(verify=self._trusted))


def public_addresses(host: str, port: int) -> list[Address]:
    """The addresses of `host`, those of IPv4 first. Raises `CapabilityError` where one is not public, `httpx.ConnectError` without any."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpx.ConnectError(f"the name {host!r} cannot be looked up: {error}") from error
    addresses = sorted({ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found}, key=lambda one: (one.version, one))
    for address in addresses:
        if not is_public(address):
            raise CapabilityError(
                f"{host} is at {address}, which is not on the public internet.",
                remedy="Whoever runs the server can name it in AGENTENV_INSECURE_REGISTRIES, or set sandboxes.private_destinations.",
            )
    return addresses


def is_public(address: Address) -> bool:
    """Whether an address is reached over the internet; one of IPv4 in the clothes of IPv6 is judged as what it is."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        return address.is_global and not address.is_multicast and (inner is None or is_public(inner)) and address not in _NAT64
    return address.is_global and not is_special(address)


_NAT64 = ipaddress.IPv6Network("64:ff9b::/32")
"""Translators put any address of IPv4 into this one (RFC 6052, RFC 8215)."""


def _at(request: httpx.Request, address: Address) -> httpx.Request:
    """The same request to that address: `Host` and the name in TLS stay those of the host."""
    host = f"[{address}]" if address.version == 6 else str(address)
    extensions = {**request.extensions, "sni_hostname": request.url.host}
    return httpx.Request(
        request.method, request.url.copy_with(host=host), headers=request.headers, stream=request.stream, extensions=extensions
    )
