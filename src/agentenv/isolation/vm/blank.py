"""What a machine is made of, as a name: machines of the same name come up alike, so that one can stand for all (`Blanking`)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from agentenv.isolation.contract import MachineSpec
from agentenv.isolation.vm.prepare import GuestFiles

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Changes with each boot of this machine: after one its processor may be another, and of files that were just written parts be missing."""


def blank_key(spec: MachineSpec, guest: GuestFiles, *made_by: str) -> str:
    """32 hexadecimal digits; `made_by` names the monitor and whatever else of it a machine depends on. Raises OSError."""
    kernel, network = guest.kernel.stat(), spec.network
    facts = (
        made_by,
        _BOOT.read_text(),
        # The names of these two say what is in them.
        guest.initrd.name,
        guest.root.path.name,
        (str(guest.kernel), kernel.st_size, kernel.st_mtime_ns),
        spec.resources,
        (network.enabled, network.nameservers),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
