"""Frees what dead owners left: their cgroups with whatever still runs in them, their networks, their directories.

Of owners in another AGENTENV_HOME, which may have been deleted since, only what is surely nobody's: networks whose lock is free, and empty
cgroups of processes that are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentenv.images.held import claim
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.namespace.deserted import remove_deserted
from agentenv.node.home import Home
from agentenv.node.network import NetworkPool
from agentenv.node.network_host import STATE
from agentenv.node.owner import dead_owners


async def reconcile(home: Home, resting: Path, salvage: Callable[[Path], Awaitable[None]]) -> list[str]:
    """Cleans up after every dead owner in `home`, and returns their ids; two processes never do it at the same time.

    What owners in other homes left is removed as well.

    `salvage` is given the directory of each, when nothing runs there any more, to keep what is to be kept. The directories are only moved
    to `resting` then, whose owner removes them at leisure: were it to die on the way, they are its own remains.
    """
    await asyncio.to_thread(lambda: remove_deserted(CgroupTree.discover()))
    if await asyncio.to_thread(_a_network_is_deserted, STATE / "pools"):
        await NetworkPool.reconcile(home.path)
    # Most starts find nobody dead, and need no lock to see that.
    if not await asyncio.to_thread(dead_owners, home):
        return []
    lock = await asyncio.to_thread(home.lock)
    with lock:
        dead = await asyncio.to_thread(dead_owners, home)
        await asyncio.to_thread(_remove_cgroups, [path.name for path in dead])
        await NetworkPool.reconcile(home.path, [path.name for path in dead])
        for path in dead:
            await salvage(path)
            path.rename(resting / path.name)
    return [path.name for path in dead]


def _a_network_is_deserted(pools: Path) -> bool:
    """Whether some owner's part in the network is not locked; one that is just being made may look so."""
    try:
        locks = [lock for path in pools.iterdir() if (lock := claim(path)) is not None]
    except (FileNotFoundError, PermissionError):
        return False  # nobody ever had a network, or only root, whose concern they are
    for lock in locks:
        lock.release()
    return bool(locks)


def _remove_cgroups(owners: list[str]) -> None:
    tree = CgroupTree.discover()
    groups = tree.by_owner()
    for owner in owners:
        for name in groups.get(owner, ()):
            tree.remove(name)
