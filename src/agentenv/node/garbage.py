"""Removes what nothing in an AGENTENV_HOME needs any more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agentenv.images import ImageStore
from agentenv.images.files import allocated_bytes
from agentenv.node.home import Home
from agentenv.node.layers import LayerStore
from agentenv.node.owner import Owner
from agentenv.node.reconcile import reconcile


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What was removed: how many layers, images and remains of dead owners, and the bytes of the layers and images."""

    layers: int
    images: int
    owners: int
    bytes: int


async def collect(home: Home, owner: Owner, layers: LayerStore, images: ImageStore) -> GarbageReport:
    """Layers that no snapshot needs and nobody uses, outdated bottom layers of `host`, and what dead owners left."""
    dead = await reconcile(home, owner.directory / "trash")
    removed, size = 0, 0
    for name in layers.unneeded():
        taken = await asyncio.to_thread(allocated_bytes, layers.directory / name)
        if layers.remove(name):
            removed, size = removed + 1, size + taken
    pruned = await asyncio.to_thread(images.prune_skeletons)
    return GarbageReport(removed, len(pruned), len(dead), size + sum(image.size for image in pruned))
