"""What a machine starts from: an image, what was written over it, and perhaps the memory that it goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.errors import CapabilityError
from agentenv.isolation.contract import RootFilesystem
from agentenv.node.layers import LayersInUse

DISK = "disk.img"
"""What a layer holds that is the whole disk of a virtual machine instead of a tree of changes, and what its upper is called."""


@dataclass(frozen=True, slots=True)
class Origin:
    """An image, the snapshot layers over it, and the snapshot nearest above in the tree (its id).

    With `memory` the machine goes on where that was written down. It is kept in use as long as the machine lives, which maps it. `env` is
    the environment that the processes in it were started with.
    """

    image: RootFilesystem
    layers: LayersInUse
    snapshot: str | None = None
    memory: LayersInUse | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def disk(self) -> Path | None:
        """The disk that the machine's own is a copy of; None where it starts with an empty one, or has trees."""
        return next((path / DISK for path in self.layers.paths[:1] if (path / DISK).is_file()), None)

    @property
    def below(self) -> tuple[str, ...]:
        """The layers that go on to lie below what the machine writes: a disk holds what the disk before it held."""
        return self.layers.ids[1:] if self.disk is not None else self.layers.ids

    def require_room_for(self, disk_image: bool, backend: str) -> None:
        """Raises `CapabilityError` where a backend without disks is to start from one."""
        if self.disk is not None and not disk_image:
            raise CapabilityError(
                f"the files of this snapshot are the disk of a virtual machine, and sandboxes of {backend!r} have none.",
                remedy="Start it with the isolation that it was taken with.",
            )

    def release(self) -> None:
        """None of it is needed here any more; idempotent."""
        self.layers.release()
        if self.memory is not None:
            self.memory.release()
