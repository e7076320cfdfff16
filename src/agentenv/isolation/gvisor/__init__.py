"""The wall made of gVisor: a kernel of its own, in user space, for each sandbox; with snapshots of memory, and without hardware support.

`open_backend` is what the entry point `gvisor` of the group `agentenv.backends` names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentenv.isolation.gvisor.backend import GvisorBackend

__all__ = ["open_backend"]


async def open_backend(owner_dir: Path) -> GvisorBackend:
    """Opens the gVisor backend for the owner of `owner_dir`. Raises `BackendUnavailable` with the reason."""
    from agentenv.isolation.gvisor.backend import GvisorBackend

    return await GvisorBackend.open(owner_dir)
