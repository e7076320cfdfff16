"""An `EgressPolicy` in the kernel's words: the chains of one sandbox on the host, and the wall inside its own namespace.

Every packet that a sandbox sends is judged by where it goes, those of established connections too, so that what a change denies ends at
once. Both walls stand at any time, so while one of them is being changed only what both the old and the new policy allow gets through.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentenv.destinations import Block
from agentenv.egress.policy import SPECIAL, EgressPolicy, is_named

TABLE = "agentenv"
INTERFACE_PREFIX = "aev"
LOG_GROUP = 1
NAMES_PORT = 53
VIRTUAL_NAMESERVER = "192.0.0.53"
"""Whom a sandbox asks for names where the host has no name server in its reach. Nobody has this address (it is kept for uses inside of one
host, RFC 6890), and where names decide, the proxy answers whatever is asked of anybody."""

_KINDS = ("forward", "input", "redirect")
MAPS = f"add table inet {TABLE}\n" + "".join(f"add map inet {TABLE} {kind}_of {{ type ifname : verdict; }}\n" for kind in _KINDS)
"""Through these the table that is the machine's leads to the chains of single sandboxes."""

_DATAGRAMS = "200/second burst 400 packets"
_NEW_STREAMS = "100/second burst 500 packets"
_BOTH = "meta l4proto { tcp, udp } th dport"


@dataclass(frozen=True, slots=True)
class ProxyPorts:
    """Where on the gateway's address the proxy of one sandbox listens: for connections, and for questions by datagram and by stream."""

    connections: int
    datagrams: int
    questions: int


def _blocks(rules: Iterable[Block], verdict: str, *conditions: str) -> list[str]:
    """One rule a port for all blocks with that port."""
    by_port: dict[int | None, list[ipaddress.IPv4Network]] = {}
    for rule in rules:
        by_port.setdefault(rule.port, []).append(rule.network)
    lines = []
    for port, networks in by_port.items():
        ranges = ", ".join(map(str, ipaddress.collapse_addresses(networks)))
        lines.append(" ".join([*((f"{_BOTH} {port}",) if port else ()), f"ip daddr {{ {ranges} }}", *conditions, verdict]))
    return lines


def _judgement(policy: EgressPolicy, *, ask_nameserver: str, questions: Iterable[str], named: Iterable[str]) -> list[str]:
    """The rules for packets to other machines.

    `ask_nameserver` lets questions to name servers pass. Where names decide, `questions` is about port 53 and `named` about `named_ports`.
    """
    asked = [block for block in policy.allowed_blocks if block.port == NAMES_PORT]
    others = [block for block in policy.allowed_blocks if block.port != NAMES_PORT]
    lines = [
        "meta nfproto ipv6 drop",
        "ct state related accept",
        *_allowed(asked),
        *(questions if policy.by_name else ()),
        *_allowed(others),
    ]
    if policy.by_name:
        # QUIC carries names that no proxy reads; without it, programs use TCP.
        lines += [*named, f"tcp dport {{ {_list(policy.named_ports)} }} goto refuse", "udp dport 443 goto refuse"]
    elif policy.open:
        lines.append(ask_nameserver)
    lines += _blocks(policy.denied_blocks, "goto refuse")
    return [*lines, "ip daddr @denied goto refuse", "accept" if policy.internet else "goto refuse"]


def _allowed(blocks: Iterable[Block]) -> list[str]:
    known = list(blocks)
    named = [block for block in known if is_named(block)]
    return [*_blocks(named, "accept"), *_blocks((block for block in known if block not in named), "accept", "ip daddr != @denied")]


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def host_chains(interface: str, policy: EgressPolicy, proxy: ProxyPorts | None) -> str:
    """The chains of the sandbox behind `interface`, in place of those that it had; without them the policy for all is in force."""
    single = [block for block in policy.allowed_blocks if block.network.prefixlen == 32]
    doors = () if proxy is None else _doors(proxy)
    # Questions went to the proxy; those that did not are of connections from before a change.
    judged = _judgement(policy, ask_nameserver="jump ask_nameserver", questions=[f"{_BOTH} {NAMES_PORT} goto refuse"], named=())
    forward = [f'oifname "{INTERFACE_PREFIX}*" goto refuse', *judged]
    local = [
        "meta nfproto ipv6 drop",
        "ct direction reply ct state established,related accept",
        *doors,
        *_blocks(single, "accept"),
        *(["jump ask_nameserver"] if policy.open and not policy.by_name else []),
        "goto refuse",
    ]
    chains = {"forward": forward, "input": local, "redirect": [] if proxy is None else _redirections(policy, proxy)}
    text = ""
    for kind, lines in chains.items():
        name = f"{kind}_{interface}"
        body = "\n".join(filter(None, lines))
        text += f"add chain inet {TABLE} {name}\nflush chain inet {TABLE} {name}\ntable inet {TABLE} {{\nchain {name} {{\n{body}\n}}\n}}\n"
        text += f'add element inet {TABLE} {kind}_of {{ "{interface}" : jump {name} }}\n'
    return text


def no_host_chains(interfaces: Iterable[str]) -> str:
    """Removes the chains of sandboxes that are gone; where there are none (any more), that is no error."""
    text = MAPS
    for interface in interfaces:
        for kind in _KINDS:
            name, element = f"{kind}_{interface}", f'{{ "{interface}" : jump {kind}_{interface} }}'
            text += f"add chain inet {TABLE} {name}\nadd element inet {TABLE} {kind}_of {element}\n"
            text += f'delete element inet {TABLE} {kind}_of {{ "{interface}" }}\ndelete chain inet {TABLE} {name}\n'
    return text


def _doors(proxy: ProxyPorts) -> list[str]:
    """Only what was sent elsewhere comes to the proxy, nobody can ask it for anything directly; and no more than it can stand."""
    streams = f"{proxy.connections}, {proxy.questions}"
    return [
        f"ct status dnat udp dport {proxy.datagrams} limit rate {_DATAGRAMS} accept",
        f"ct status dnat ct state new tcp dport {{ {streams} }} limit rate {_NEW_STREAMS} accept",
        f"ct status dnat ct state established tcp dport {{ {streams} }} accept",
    ]


def _redirections(policy: EgressPolicy, proxy: ProxyPorts) -> list[str]:
    return [
        # A range that is allowed on all ports is no permission to ask its name servers for anything.
        *_blocks((block for block in policy.allowed_blocks if block.port == NAMES_PORT), "accept"),
        f"udp dport {NAMES_PORT} redirect to :{proxy.datagrams}",
        f"tcp dport {NAMES_PORT} redirect to :{proxy.questions}",
        *_blocks((block for block in policy.allowed_blocks if block.port != NAMES_PORT), "accept"),
        f"tcp dport {{ {_list(policy.named_ports)} }} redirect to :{proxy.connections}",
    ]


def inner_wall(nameservers: Sequence[str]) -> str:
    """The table for a new sandbox's own namespace, with the policy that all have by default.

    What it refuses, it tells to log group 1, a few times a second at most. A policy of the sandbox's own goes into the empty chain `own`:
    nothing has to be taken out for it, which the kernel does ten times as slowly as putting in.
    """
    # One that stands there is replaced: of an attempt to connect that sandbox that failed half-way.
    return f"""\
add table inet {TABLE}
delete table inet {TABLE}
table inet {TABLE} {{
  set denied {{ type ipv4_addr; flags interval; elements = {{ {", ".join(SPECIAL)} }} }}
  chain refuse {{
    limit rate 2/second burst 30 packets log group {LOG_GROUP} snaplen 64
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }}
  chain own {{
  }}
  chain sending {{
    jump own
    {_inner_judgement(EgressPolicy(), nameservers)}
  }}
  chain output {{
    type filter hook output priority filter; policy accept;
    oifname "eth0" jump sending
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    oifname "eth0" jump sending
  }}
}}
"""


def inner_change(policy: EgressPolicy, nameservers: Sequence[str]) -> str:
    """Puts `policy` into that wall, in the place of one that was there."""
    return f"flush chain inet {TABLE} own\ntable inet {TABLE} {{\nchain own {{\n{_inner_judgement(policy, nameservers)}\n}}\n}}\n"


def _inner_judgement(policy: EgressPolicy, nameservers: Sequence[str]) -> str:
    servers = ", ".join(nameservers or (VIRTUAL_NAMESERVER,))
    to_servers = f"ip daddr {{ {servers} }} {_BOTH} {NAMES_PORT} accept"
    # What the host hands to the proxy is let out, for public addresses and name servers only, as if there were no proxy.
    questions = (to_servers, f"{_BOTH} {NAMES_PORT} ip daddr != @denied accept", f"{_BOTH} {NAMES_PORT} goto refuse")
    named = (f"tcp dport {{ {_list(policy.named_ports)} }} ip daddr != @denied accept",)
    judged = _judgement(policy, ask_nameserver=to_servers if nameservers else "", questions=questions, named=named)
    return "\n    ".join(filter(None, judged))
