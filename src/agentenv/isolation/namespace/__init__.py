"""The wall made of Linux namespaces: works on any recent kernel, as root with cgroups and a network, as a user with what the kernel grants.

`open_backend` is what the entry point `namespace` of the group `agentenv.backends` names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentenv.isolation.namespace.backend import NamespaceBackend

__all__ = ["open_backend"]


async def open_backend(owner_dir: Path) -> NamespaceBackend:
    """Opens the namespace backend for the owner of `owner_dir`. Raises `BackendUnavailable` with the reason."""
    from agentenv.isolation.namespace.backend import NamespaceBackend

    return await NamespaceBackend.open(owner_dir)
