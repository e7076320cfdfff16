"""How much a sandbox may send and receive: a token bucket (tc-tbf(8)) at each end of its link, which delays what is too much."""

from __future__ import annotations

import subprocess
from pathlib import Path

from agentenv.egress.policy import EgressPolicy
from agentenv.errors import InfrastructureError

_SMALLEST_BURST = 16 * 1024
_LONGEST_WAIT = "200ms"


def shape(interface: str, netns: Path, policy: EgressPolicy) -> None:
    """Limits what comes through the host's `interface` and leaves by `eth0` of `netns`, or lifts the limits.

    Blocks for some milliseconds. Raises `InfrastructureError` when `tc` does not do it.
    """
    _limit((), interface, policy.download)
    _limit(("-n", netns.name), "eth0", policy.upload)


def _limit(options: tuple[str, ...], device: str, rate: int | None) -> None:
    # A link has some root discipline at any time: this one takes the place of a limit, and is what there is without one.
    wanted = ("noqueue",) if rate is None else ("tbf", "rate", f"{rate}bps", "burst", str(max(_SMALLEST_BURST, rate // 50)))
    waiting = () if rate is None else ("latency", _LONGEST_WAIT)
    command = ["tc", *options, "qdisc", "replace", "dev", device, "root", *wanted, *waiting]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise InfrastructureError("the program `tc` is not installed.", remedy="Install iproute2.") from error
    if result.returncode != 0:
        words = result.stderr.strip().partition("\n")[0]
        raise InfrastructureError(
            f"the bandwidth of {device} cannot be limited: {words}.", remedy="Load the kernel's module sch_tbf, or set no limit."
        )
