"""The wall made of Firecracker: a virtual machine of its own for each sandbox, on the processor's own support (KVM).

`open_backend` is what the entry point `firecracker` of the group `agentenv.backends` names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentenv.isolation.firecracker.backend import FirecrackerBackend

__all__ = ["open_backend"]


async def open_backend(owner_dir: Path) -> FirecrackerBackend:
    """Opens the Firecracker backend for the owner of `owner_dir`. Raises `BackendUnavailable` with the reason."""
    from agentenv.isolation.firecracker.backend import FirecrackerBackend

    return await FirecrackerBackend.open(owner_dir)
