"""Removes what nothing in an AGENTENV_HOME needs any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentenv.images import ImageStore
from agentenv.images.files import allocated_bytes
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.vm.prepare import tidy
from agentenv.node.home import Home
from agentenv.node.layers import LayerStore
from agentenv.node.owner import Owner
from agentenv.node.reconcile import reconcile


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What was removed: how many layers (memories count as such), images and remains of dead owners, and the bytes of all that.

    The bytes of files that were made for virtual machines and have not been used for weeks are among them.
    """

    layers: int
    images: int
    owners: int
    bytes: int


async def collect(
    home: Home, owner: Owner, stores: Sequence[LayerStore], images: ImageStore, salvage: Callable[[Path], Awaitable[None]]
) -> GarbageReport:
    """Layers and memories that no snapshot needs and nobody uses, outdated bottom layers of `host`, old files of virtual machines, and what
    dead owners left, after `salvage` (see `reconcile`).
    """
    dead = await reconcile(home, owner.directory / "trash", salvage)
    removed, size = 0, 0
    for store in stores:
        for name in store.unneeded():
            taken = await asyncio.to_thread(allocated_bytes, store.directory / name)
            if store.remove(name):
                removed, size = removed + 1, size + taken
    pruned = await asyncio.to_thread(images.prune_skeletons)
    size += await asyncio.to_thread(tidy, ArtefactStore.open())
    return GarbageReport(removed, len(pruned), len(dead), size + sum(image.size for image in pruned))
