"""What users write for limits and networks, as the node takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from agentenv.destinations import Destination, parse_allowed, parse_destination
from agentenv.egress.policy import EgressPolicy
from agentenv.errors import ConfigError
from agentenv.isolation.contract import Resources
from agentenv.node.records import NetworkRequest
from agentenv.units import parse_rate, parse_size

DEFAULT_PIDS = Resources().pids
_POLICY = ("allow_internet_access", "allow", "deny", "bandwidth")
_NETWORK = ("enabled", "ports", *_POLICY)
_RESOURCES = tuple(field.name for field in fields(Resources))


def resources_of(wish: Resources | Mapping[str, Any] | None, *, pids: int | None = DEFAULT_PIDS) -> Resources:
    """Limits from `Resources` or from a mapping with sizes and rates as numbers or text ("4GB", "100MB/s").

    `pids` is taken where the mapping says nothing of it. Raises `ConfigError` for a key or value that makes no sense.
    """
    if isinstance(wish, Resources):
        return wish
    given = dict(wish or {})
    if unknown := sorted(set(given) - set(_RESOURCES)):
        raise ConfigError(f"there is no such limit; there are {', '.join(_RESOURCES)}", key=f"resources.{unknown[0]}")
    limits = Resources(pids=pids)
    for name, value in given.items():
        limits = replace(limits, **{name: _limit(name, value)})
    return limits


def _limit(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in ("memory", "storage", "disk_read", "disk_write"):
        try:
            return parse_rate(value) if name.startswith("disk_") else parse_size(value)
        except ValueError as error:
            raise ConfigError(str(error), key=f"resources.{name}") from error
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 or (name != "cpu" and not isinstance(value, int)):
        what = "a number of cores above 0" if name == "cpu" else "a whole number above 0"
        raise ConfigError(f"{value!r} is not {what}", key=f"resources.{name}")
    return value


def network_request(wish: bool | NetworkRequest | Mapping[str, Any]) -> NetworkRequest:
    """A network from True, False, a mapping with the keys of a configuration's `network`, or a `NetworkRequest`. Raises `ConfigError`."""
    if isinstance(wish, NetworkRequest):
        return wish
    if isinstance(wish, bool):
        return NetworkRequest(enabled=wish)
    _only(wish, _NETWORK)
    ports = tuple(wish.get("ports", ()))
    for port in ports:
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
            raise ConfigError(f"{port!r} is not a port; ports are whole numbers from 1 to 65535", key="network.ports")
    enabled = _flag(wish, "enabled", default=False)
    policy = egress_policy({name: value for name, value in wish.items() if name in _POLICY})
    if not enabled and replace(policy, internet=True) != EgressPolicy():
        raise ConfigError("rules for a network that is not enabled; write `enabled: true` with them", key="network")
    return NetworkRequest(enabled, ports, policy)


def egress_policy(wish: EgressPolicy | Mapping[str, Any]) -> EgressPolicy:
    """What may be reached, from a mapping with `allow_internet_access`, `allow`, `deny` and `bandwidth`. Raises `ConfigError`."""
    if isinstance(wish, EgressPolicy):
        return wish
    _only(wish, _POLICY)
    rates = wish.get("bandwidth") or {}
    _only(rates, ("up", "down"), "network.bandwidth")
    return EgressPolicy(
        internet=_flag(wish, "allow_internet_access", default=True),
        allow=_destinations(wish, "allow", parse_allowed),
        deny=_destinations(wish, "deny", parse_destination),
        upload=_rate(rates, "up"),
        download=_rate(rates, "down"),
    )


def _only(wish: Mapping[str, Any], known: Sequence[str], where: str = "network") -> None:
    if not isinstance(wish, Mapping):
        raise ConfigError(f"{wish!r} is no mapping; its keys are {', '.join(known)}", key=where)
    if unknown := sorted(set(wish) - set(known)):
        raise ConfigError(f"there is no such setting; there are {', '.join(known)}", key=f"{where}.{unknown[0]}")


def _flag(wish: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = wish.get(name, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{value!r} is neither true nor false", key=f"network.{name}")
    return value


def _destinations(wish: Mapping[str, Any], name: str, parse: Callable[[str], Destination]) -> tuple[str, ...]:
    given = wish.get(name) or ()
    if isinstance(given, str):
        raise ConfigError(f"{given!r} is no list; write [{given!r}]", key=f"network.{name}")
    try:
        return tuple(str(parse(text)) for text in given)
    except ValueError as error:
        raise ConfigError(str(error), key=f"network.{name}") from error


def _rate(rates: Mapping[str, Any], name: str) -> int | None:
    try:
        return None if rates.get(name) is None else parse_rate(rates[name])
    except ValueError as error:
        raise ConfigError(str(error), key=f"network.bandwidth.{name}") from error
