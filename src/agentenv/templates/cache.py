"""The results of steps: snapshots that carry, in their metadata, the key of the step that made them."""

from __future__ import annotations

from agentenv.errors import InvalidState
from agentenv.node import Node
from agentenv.node.snapshots import Snapshot

MARK = "agentenv.build"
"""The key in a snapshot's metadata under which a step's key stands; who lists snapshots for people may leave these out."""


class StepCache:
    """Finds the result of a step that was done before, by any build of this AGENTENV_HOME."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: dict[str, str] = {}

    async def read(self) -> None:
        """Looks what there is."""
        self._known = {snapshot.metadata[MARK]: snapshot.id for snapshot in await self._node.snapshots() if MARK in snapshot.metadata}

    def find(self, key: str) -> str | None:
        """The snapshot that a step with that key left; None where there is none."""
        return self._known.get(key)

    def add(self, key: str, snapshot: str) -> None:
        """A step was done."""
        self._known[key] = snapshot

    def forget(self, key: str) -> None:
        """A result turned out to be unusable."""
        self._known.pop(key, None)


async def prune(node: Node, keep: frozenset[str] = frozenset()) -> list[Snapshot]:
    """Deletes the results of steps that no template is made of and nothing was built on, but for those in `keep`; returns them."""
    removed: list[Snapshot] = []
    needed = keep | node.templates.needed_snapshots().keys()
    while True:
        snapshots = await node.snapshots()
        parents = {snapshot.parent for snapshot in snapshots}
        leaves = [one for one in snapshots if MARK in one.metadata and one.id not in parents and one.id not in needed]
        done = False
        for leaf in leaves:
            try:
                await node.delete_snapshot(leaf.id)
            except InvalidState:
                continue  # Something was built on it this very moment.
            removed.append(leaf)
            done = True
        if not done:
            return removed
