"""The images of this user's AGENTENV_HOME, for commands."""

from __future__ import annotations

from agentenv.images import ImageStore
from agentenv.node.home import Home


def store() -> ImageStore:
    """The images of this user's AGENTENV_HOME, with those that snapshots need."""
    from agentenv.node.snapshots import SnapshotTree

    home = Home.open()
    return ImageStore(home.path, pinned=SnapshotTree(home.snapshots).needed_images)
