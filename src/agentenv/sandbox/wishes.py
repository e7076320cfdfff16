"""What users write for limits and networks, as the node takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from agentenv.errors import ConfigError
from agentenv.isolation.contract import Resources
from agentenv.node.records import NetworkRequest
from agentenv.units import parse_size

DEFAULT_PIDS = Resources().pids
_RESOURCES = tuple(field.name for field in fields(Resources))


def resources_of(wish: Resources | Mapping[str, Any] | None, *, pids: int | None = DEFAULT_PIDS) -> Resources:
    """Limits from `Resources` or from a mapping with sizes as numbers or text ("4GB"); `pids` where the mapping says nothing of it.

    Raises `ConfigError` for a key or value that makes no sense.
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
    if name in ("memory", "storage"):
        try:
            return parse_size(value)
        except ValueError as error:
            raise ConfigError(str(error), key=f"resources.{name}") from error
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 or (name == "pids" and not isinstance(value, int)):
        what = "a number of cores above 0" if name == "cpu" else "a whole number above 0"
        raise ConfigError(f"{value!r} is not {what}", key=f"resources.{name}")
    return value


def network_request(wish: bool | NetworkRequest | Mapping[str, Any]) -> NetworkRequest:
    """A network from True, False, a mapping with `enabled` and `ports`, or a `NetworkRequest`. Raises `ConfigError`."""
    if isinstance(wish, NetworkRequest):
        return wish
    if isinstance(wish, bool):
        return NetworkRequest(enabled=wish)
    if unknown := sorted(set(wish) - {"enabled", "ports"}):
        raise ConfigError("there is no such setting; there are enabled and ports", key=f"network.{unknown[0]}")
    ports = tuple(wish.get("ports", ()))
    for port in ports:
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
            raise ConfigError(f"{port!r} is not a port; ports are whole numbers from 1 to 65535", key="network.ports")
    enabled = wish.get("enabled", False)
    if not isinstance(enabled, bool):
        raise ConfigError(f"{enabled!r} is neither true nor false", key="network.enabled")
    return NetworkRequest(enabled, ports)
