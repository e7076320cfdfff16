"""How large a read-only file system says it is: an image that is smaller was cut off, which a guest would find out while it works.

EROFS: struct erofs_super_block of Linux's fs/erofs/erofs_fs.h; squashfs: struct squashfs_super_block of fs/squashfs/squashfs_fs.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentenv.errors import InfrastructureError

Filesystem = Literal["erofs", "squashfs"]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the superblock lies, and `form` of it up to the size, which begins with `magic`."""

    at: int
    form: struct.Struct
    magic: int


_LAYOUTS = {
    "erofs": _Layout(1024, struct.Struct("<I8xB23xI"), 0xE0F5E1E2),  # magic, log2 of a block's size, blocks
    "squashfs": _Layout(0, struct.Struct("<I36xQ"), 0x73717368),  # magic, bytes
}


def require_whole(path: Path, filesystem: Filesystem) -> None:
    """Raises `InfrastructureError` where the image at `path` has been cut off or holds something else, OSError where it cannot be read."""
    layout = _LAYOUTS[filesystem]
    with path.open("rb") as file:
        found = file.seek(0, 2)
        file.seek(layout.at)
        head = file.read(layout.form.size)
    magic, *size = layout.form.unpack(head) if len(head) == layout.form.size else (0, 0)
    wanted = size[0] if filesystem == "squashfs" else size[-1] << size[0]
    if magic != layout.magic:
        what = f"is no {filesystem} image"
    elif found < wanted:
        what = f"holds {wanted} bytes of {filesystem} but has only {found}: it was cut off"
    else:
        return
    raise InfrastructureError(f"the root image {path} {what}.", remedy="Remove this file: it is made anew, which takes some seconds.")
