"""What network rules name: addresses ("10.1.0.0/16", "10.1.2.3:5432") and domains ("example.com", "*.example.com", "example.com:8443").

Sandboxes have IPv4 only. A domain is written in ASCII; `*.example.com` is every name below example.com, that one itself not among them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_NEVER = tuple(map(ipaddress.IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")))
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_ADDRESS_LIKE = re.compile(r"[0-9.]+(/.*)?")
_LONGEST_NAME = 253
_EXAMPLES = "write an address (10.1.2.3), a range (10.1.0.0/16), a domain (example.com, *.example.com), each with :PORT where wanted"


@dataclass(frozen=True, slots=True)
class Block:
    """The addresses of `network`, on one TCP and UDP port or (None) on all ports and protocols."""

    network: ipaddress.IPv4Network
    port: int | None = None

    def matches(self, address: ipaddress.IPv4Address, port: int) -> bool:
        """Whether it names that port of that address."""
        return address in self.network and self.port in (None, port)

    def __str__(self) -> str:
        network = str(self.network.network_address) if self.network.prefixlen == 32 else str(self.network)
        return network if self.port is None else f"{network}:{self.port}"


@dataclass(frozen=True, slots=True)
class Domain:
    """One name or (`below`) every name below it, on one TCP port or (None) on those of the web, 80 and 443."""

    name: str
    below: bool = False
    port: int | None = None

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that it is about."""
        return WEB_PORTS if self.port is None else (self.port,)

    def matches(self, name: str) -> bool:
        """Whether it names that host (lower case, without a dot at its end), whatever the port."""
        return name.endswith(f".{self.name}") if self.below else name == self.name

    def __str__(self) -> str:
        name = f"*.{self.name}" if self.below else self.name
        return name if self.port is None else f"{name}:{self.port}"


Destination = Block | Domain
WEB_PORTS = (80, 443)


def parse_destination(text: str) -> Destination:
    """What `text` names. Raises ValueError, "what is wrong; what would be right", for anything else."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is no destination; {_EXAMPLES}")
    if "://" in text:
        raise ValueError(f"{text!r} is a URL; write its host alone, as in example.com")
    if text.count(":") > 1 or text.startswith("["):
        raise ValueError(f"{text!r} looks like IPv6, which sandboxes do not have; write IPv4 addresses or domains")
    place, colon, port_text = text.strip().partition(":")
    port = _port(port_text, text) if colon else None
    return Block(_network(place, text), port) if _ADDRESS_LIKE.fullmatch(place) else _domain(place, port, text)


def parse_allowed(text: str) -> Destination:
    """The same for what is to be allowed, which also has to be reachable at all."""
    destination = parse_destination(text)
    if isinstance(destination, Block) and any(destination.network.subnet_of(never) for never in _NEVER):
        raise ValueError(
            f"{text!r} is an address that nothing outside of a sandbox has; name the address under which the host's network knows it"
        )
    return destination


def _port(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 65535:
        raise ValueError(f"{whole!r} ends with no port; ports are whole numbers from 1 to 65535, as in 10.1.2.3:443")
    return int(text)


def _network(text: str, whole: str) -> ipaddress.IPv4Network:
    try:
        network = ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        raise ValueError(f"{whole!r} is neither an IPv4 address nor a range of them; {_EXAMPLES}") from None
    if str(network.network_address) != text.partition("/")[0]:
        raise ValueError(f"{whole!r} is no range, since its address lies inside of it; did you mean {network}?")
    return network


def _domain(text: str, port: int | None, whole: str) -> Domain:
    name = text.lower().removesuffix(".")
    below = name.startswith("*.")
    name = name.removeprefix("*.")
    if name == "*":
        raise ValueError(f"{whole!r} names nothing; write 0.0.0.0/0 for all addresses, or *.example.com for the names below one")
    if not name.isascii():
        raise ValueError(f"{whole!r} has letters that a name in the network does not have; write its ASCII form, which begins with xn--")
    if "*" in name:
        raise ValueError(f"{whole!r} has a * where none can be; it stands alone at the front, as in *.example.com")
    labels = name.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels) or len(name) > _LONGEST_NAME or labels[-1].isdigit():
        raise ValueError(f"{whole!r} is no domain; {_EXAMPLES}")
    return Domain(name, below, port)
