"""The wall made of a machine of its own, by QEMU: run by KVM where the processor runs it, else emulated, which works anywhere.

`open_backend` is what the entry point `qemu` of the group `agentenv.backends` names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentenv.isolation.qemu.backend import QemuBackend

__all__ = ["open_backend"]


async def open_backend(owner_dir: Path) -> QemuBackend:
    """Opens the QEMU backend for the owner of `owner_dir`. Raises `BackendUnavailable` with the reason."""
    from agentenv.isolation.qemu.backend import QemuBackend

    return await QemuBackend.open(owner_dir)
