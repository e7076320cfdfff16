"""What a networked sandbox may reach by default: one policy for every backend whose host-side interfaces are named `aev…`.

Denied are the host itself, every other sandbox, and all that is not the public internet; the host's name servers are the one exception,
on port 53 only. IPv6 is not given to sandboxes, so all of it is denied. The rules match interfaces by their prefix: they stand, and
nothing has to be added for a new interface, before its link comes up.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agentenv.egress.policy import SPECIAL
from agentenv.egress.rules import INTERFACE_PREFIX, MAPS, TABLE

SLOT_RANGES = (*(f"10.{number}.0.0/16" for number in range(200, 220)), "172.30.0.0/16", "198.18.0.0/16")
"""Where slots take their addresses from: the first of these that the host has no route into."""

SLOTS_PER_RANGE = 1 << 14

_RESOLVER_FILES = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
"""The second holds the real servers where the first names systemd-resolved's stub on loopback."""

Network4 = ipaddress.IPv4Network


@dataclass(frozen=True, slots=True)
class Addresses:
    """The two ends of one slot's link, a /30 of its own."""

    gateway: str
    address: str
    prefix_length: int = 30


def addresses(slot_range: Network4, index: int) -> Addresses:
    """The addresses of slot `index` (0 to `SLOTS_PER_RANGE` - 1) in `slot_range`, a /16."""
    base = int(slot_range.network_address) + 4 * index
    return Addresses(str(ipaddress.IPv4Address(base + 1)), str(ipaddress.IPv4Address(base + 2)))


def choose_range(routes: Iterable[str]) -> Network4 | None:
    """The first of `SLOT_RANGES` that overlaps none of the host's `routes` (CIDR texts), None when all do.

    Routes to half of the internet or more are how default routes are spelt and do not count.
    """
    taken = [network for route in routes if (network := ipaddress.ip_network(route, strict=False)).version == 4 and network.prefixlen > 1]
    for candidate in map(Network4, SLOT_RANGES):
        if not any(candidate.overlaps(network) for network in taken if isinstance(network, Network4)):
            return candidate
    return None


def parse_nameservers(text: str) -> tuple[str, ...]:
    """The IPv4 servers of a resolv.conf that can be reached from elsewhere: not loopback, not unspecified; in order, each once."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 2 or fields[0] != "nameserver":
            continue
        try:
            address = ipaddress.ip_address(fields[1])
        except ValueError:
            continue
        if address.version == 4 and not (address.is_loopback or address.is_unspecified or address.is_multicast):
            found[str(address)] = None
    return tuple(found)


def host_nameservers(files: Iterable[Path] = _RESOLVER_FILES) -> tuple[str, ...]:
    """The host's name servers that a sandbox can be allowed to ask; empty when it only has a resolver on loopback or on IPv6."""
    for path in files:
        try:
            servers = parse_nameservers(path.read_text(errors="replace"))
        except OSError:
            continue
        if servers:
            return servers
    return ()


def ruleset(slot_ranges: Iterable[str], nameservers: Iterable[str]) -> str:
    """The machine's part of the table for libnftables: applied as one transaction, it takes the place of the one before without a gap.

    The chains of single sandboxes (`agentenv.egress.rules.host_chains`) stay. Refusals are answered, so that a
    program inside fails at once rather than after minutes: TCP with a reset, since the kernel sends only a few ICMP errors a second to
    one address (icmp_ratelimit).
    """
    sets = {"denied": SPECIAL, "nameservers": tuple(nameservers), "slots": tuple(slot_ranges)}
    text = MAPS
    for name, elements in sets.items():
        flags = "" if name == "nameservers" else " flags interval;"
        text += f"add set inet {TABLE} {name} {{ type ipv4_addr;{flags} }}\nflush set inet {TABLE} {name}\n"
        text += f"add element inet {TABLE} {name} {{ {', '.join(elements)} }}\n" if elements else ""
    for chain, hook in _CHAINS.items():
        text += f"add chain inet {TABLE} {chain}{hook}\nflush chain inet {TABLE} {chain}\n"
    return text + _RULES


_CHAINS = {
    "ask_nameserver": "",
    "refuse": "",
    "from_sandbox": "",
    "input": " { type filter hook input priority filter - 10; policy accept; }",
    "forward": " { type filter hook forward priority filter - 10; policy accept; }",
    "prerouting": " { type nat hook prerouting priority dstnat; policy accept; }",
    "postrouting": " { type nat hook postrouting priority srcnat; policy accept; }",
}

BASE_CHAINS = tuple(chain for chain, hook in _CHAINS.items() if hook)
"""Those in which the kernel begins."""

_RULES = f"""\
table inet {TABLE} {{
  chain ask_nameserver {{
    ip daddr @nameservers meta l4proto {{ tcp, udp }} th dport 53 accept
  }}
  chain refuse {{
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }}
  chain from_sandbox {{
    fib saddr . iif oif missing drop
    iifname vmap @forward_of
    ct state established,related accept
    jump ask_nameserver
    oifname "{INTERFACE_PREFIX}*" goto refuse
    ip daddr @denied goto refuse
    meta nfproto ipv6 drop
    accept
  }}
  chain input {{
    iifname != "{INTERFACE_PREFIX}*" accept
    fib saddr . iif oif missing drop
    iifname vmap @input_of
    ct state established,related accept
    jump ask_nameserver
    meta nfproto ipv6 drop
    goto refuse
  }}
  chain forward {{
    iifname "{INTERFACE_PREFIX}*" jump from_sandbox
    oifname "{INTERFACE_PREFIX}*" ct state established,related accept
    oifname "{INTERFACE_PREFIX}*" drop
  }}
  chain prerouting {{
    iifname vmap @redirect_of
  }}
  chain postrouting {{
    ip saddr @slots oifname != "{INTERFACE_PREFIX}*" masquerade
  }}
}}
"""
