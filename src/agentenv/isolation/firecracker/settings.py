"""What of the driver can be set on a machine: by environment variables, since it concerns the machine and not what runs there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agentenv.errors import CapabilityError, ConfigError
from agentenv.isolation.contract import Resources
from agentenv.isolation.firecracker.api import RateLimiter, TokenBucket
from agentenv.isolation.firecracker.vm import Limits
from agentenv.units import parse_size

JAIL = "AGENTENV_FIRECRACKER_JAIL"
CPU_TEMPLATE = "AGENTENV_FIRECRACKER_CPU_TEMPLATE"
DISK_RATE = "AGENTENV_FIRECRACKER_DISK_RATE"
NETWORK_RATE = "AGENTENV_FIRECRACKER_NETWORK_RATE"

_TEMPLATES = ("C3", "T2", "T2S", "T2CL", "T2A", "V1N1")
_REFILL_MILLISECONDS = 100
_SWITCH = {"on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """`jailed` starts machines under the jailer, `cpu_template` makes the processors of several machines look alike to their guests."""

    jailed: bool
    cpu_template: str | None = None
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ, *, root: bool | None = None) -> Settings:
        """From the variables; as root machines are jailed unless that is switched off. Raises `ConfigError` for what is no value."""
        is_root = os.geteuid() == 0 if root is None else root
        wish = environment.get(JAIL)
        if wish is not None and wish not in _SWITCH:
            raise ConfigError(f"{JAIL} is {wish!r}.", remedy="Set it to `on` or `off`.")
        template = environment.get(CPU_TEMPLATE)
        if template is not None and template not in _TEMPLATES:
            raise ConfigError(f"{CPU_TEMPLATE} is {template!r}.", remedy=f"Set it to one of {', '.join(_TEMPLATES)}.")
        limits = Limits(disk=_rate(environment, DISK_RATE), network=_rate(environment, NETWORK_RATE))
        return cls(is_root if wish is None else _SWITCH[wish], template, limits)

    def limits_of(self, resources: Resources) -> Limits:
        """What a machine with those limits is held to: its own of the disk, or the machine's where it has none.

        Raises `CapabilityError` for different rates of reading and writing: Firecracker has one bucket for both.
        """
        if not resources.limits_disks:
            return self.limits
        if resources.disk_read != resources.disk_write:
            raise CapabilityError(
                "Firecracker limits what is read from a disk and written to it together, and `disk_read` and `disk_write` differ.",
                remedy="Give both the same rate, which holds for the sum.",
            )
        bandwidth = None if resources.disk_read is None else _bucket(resources.disk_read)
        ops = None if resources.disk_iops is None else _bucket(resources.disk_iops)
        return replace(self.limits, disk=RateLimiter(bandwidth, ops))


def _bucket(rate: int) -> TokenBucket:
    """So many a second, refilled in small steps: a whole second's worth at once would let a machine stand still for the rest of it."""
    milliseconds = _REFILL_MILLISECONDS if rate * _REFILL_MILLISECONDS >= 1000 else 1000
    return TokenBucket(rate * milliseconds // 1000, milliseconds)


def _rate(environment: Mapping[str, str], name: str) -> RateLimiter | None:
    text = environment.get(name)
    if text is None:
        return None
    try:
        rate = parse_size(text.strip().removesuffix("/s"))
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}, which is no rate.", remedy="Write bytes a second, as in `50MB/s`.") from error
    return RateLimiter(bandwidth=_bucket(max(1, rate)))
