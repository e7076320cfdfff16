"""What one sandbox with a network may reach: plain data, and the answer for any address or name."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentenv.destinations import WEB_PORTS, Block, Destination, Domain, parse_allowed, parse_destination

SPECIAL = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
"""Everything that the IANA special-purpose registry (RFC 6890) keeps off the public internet, multicast and the cloud's metadata address
(169.254.169.254) included; only the documentation ranges are left out, since nothing lives there."""

_SPECIAL = tuple(map(ipaddress.IPv4Network, SPECIAL))
_EVERYTHING = ipaddress.IPv4Network("0.0.0.0/0")


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """Where `allow` and `deny` both name something, it is allowed. `internet` is about everything public that neither names.

    The two hold texts as `agentenv.destinations` writes them. Addresses off the public internet (`SPECIAL`) are reached only where a range
    of `allow` lies wholly inside of one of these: to allow everything is not to name them. `upload` and `download` are bytes a second,
    None is unlimited.
    """

    internet: bool = True
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    upload: int | None = None
    download: int | None = None

    @classmethod
    def of(
        cls,
        internet: bool = True,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        *,
        upload: int | None = None,
        download: int | None = None,
    ) -> EgressPolicy:
        """From destinations as people write them. Raises ValueError, "what is wrong; what would be right"."""
        allowed, denied = (str(parse_allowed(text)) for text in allow), (str(parse_destination(text)) for text in deny)
        return cls(internet, tuple(allowed), tuple(denied), upload, download)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for `from_dict`."""
        lists = {"allow": list(self.allow), "deny": list(self.deny)}
        return {"internet": self.internet, **lists, "upload": self.upload, "download": self.download}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EgressPolicy:
        """What `to_dict` gave."""
        return cls.of(**data)

    @property
    def open(self) -> bool:
        """Whether the public internet is reached where no rule says otherwise."""
        return self.internet and not any(block.network == _EVERYTHING and block.port is None for block in self.denied_blocks)

    @property
    def by_name(self) -> bool:
        """Whether names decide, so that a proxy has to look at them: some are denied, or some are allowed out of what is not."""
        return bool(self.denied_domains) or (bool(self.allowed_domains) and (not self.open or bool(self.deny)))

    @property
    def allowed_blocks(self) -> tuple[Block, ...]:
        """The address rules of `allow`."""
        return tuple(rule for rule in _parsed(self.allow) if isinstance(rule, Block))

    @property
    def denied_blocks(self) -> tuple[Block, ...]:
        """The address rules of `deny`."""
        return tuple(rule for rule in _parsed(self.deny) if isinstance(rule, Block))

    @property
    def allowed_domains(self) -> tuple[Domain, ...]:
        """The domain rules of `allow`."""
        return tuple(rule for rule in _parsed(self.allow) if isinstance(rule, Domain))

    @property
    def denied_domains(self) -> tuple[Domain, ...]:
        """The domain rules of `deny`."""
        return tuple(rule for rule in _parsed(self.deny) if isinstance(rule, Domain))

    @property
    def named_ports(self) -> tuple[int, ...]:
        """The TCP ports on which names decide, where they do at all."""
        ports = {port for rule in (*self.allowed_domains, *self.denied_domains) for port in rule.ports}
        return tuple(sorted(ports.union(WEB_PORTS)))

    def judge_address(self, address: ipaddress.IPv4Address, port: int) -> str | None:
        """None where the address may be reached by that number, else the rule against it."""
        if any(block.matches(address, port) and (is_named(block) or not is_special(address)) for block in self.allowed_blocks):
            return None
        if is_special(address):
            return "not on the public internet"
        denial = next((block for block in self.denied_blocks if block.matches(address, port)), None)
        if denial is not None:
            return f"deny {denial}"
        return None if self.internet else "allow_internet_access: false"

    def judge_name(self, name: str, port: int | None) -> str | None:
        """None where the host of that name may be reached (on that TCP port; None: on any), else the rule against it."""
        if self.names_allowed(name, port):
            return None
        denial = next((rule for rule in self.denied_domains if rule.matches(name) and (rule.port is None or rule.port == port)), None)
        if denial is not None:
            return f"deny {denial}"
        return None if self.open else "no rule of allow names it"

    def names_allowed(self, name: str, port: int | None) -> bool:
        """Whether a rule of `allow` names that host: then it may be reached at whatever public address it has."""
        return any(rule.matches(name) and (port is None or port in rule.ports) for rule in self.allowed_domains)


@lru_cache(maxsize=1024)
def _parsed(texts: tuple[str, ...]) -> tuple[Destination, ...]:
    return tuple(map(parse_destination, texts))


def is_special(address: ipaddress.IPv4Address) -> bool:
    """Whether it lies off the public internet."""
    return any(address in network for network in _SPECIAL)


def is_named(block: Block) -> bool:
    """Whether a rule names something off the public internet, and so opens it."""
    return any(block.network.subnet_of(network) for network in _SPECIAL)
