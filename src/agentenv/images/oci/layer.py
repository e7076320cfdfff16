"""One layer of an image as a directory that overlayfs can put over the layers below it.

An archive hides what is below by the names `.wh.NAME` and `.wh..wh..opq` (https://github.com/opencontainers/image-spec/blob/main/layer.md);
overlayfs by a character device 0/0 and by an attribute of a directory (https://docs.kernel.org/filesystems/overlayfs.html).
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable
from lzma import LZMAError
from pathlib import Path

from agentenv.errors import CapabilityError
from agentenv.images.compression import Readable, decompressed
from agentenv.images.extract import OPAQUE, WHITEOUT, Layer
from agentenv.isolation.overlay import is_whiteout, make_opaque, make_whiteout


def unpack_layer(blob: Path, diff_id: str, target: Path, what: str, after_read: Callable[[int, int], None] = lambda done, of: None) -> None:
    """Unpacks the layer's archive `blob` into the empty directory `target`. `diff_id` is the digest of the uncompressed archive.

    Raises `CapabilityError` for an archive that is broken, unsafe, or another than `diff_id` says; the caller throws `target` away then.
    """
    size = blob.stat().st_size
    try:
        with blob.open("rb") as file, decompressed(file) as plain:
            hashing = _Hashing(plain)
            OverlayLayer(target).apply(hashing, lambda: after_read(file.tell(), size))
    except (tarfile.TarError, EOFError, zlib.error, LZMAError, ValueError, OverflowError) as error:
        raise CapabilityError(f"{what} has a layer that is no complete tar archive: {error or 'it ends too early'}.") from error
    except OSError as error:
        # The decompressors of the standard library report broken data so, without an errno.
        if error.errno is not None:
            raise
        raise CapabilityError(f"{what} has a broken layer: {error}.", remedy="Pull it again.") from error
    if hashing.digest != diff_id:
        raise CapabilityError(
            f"{what} has a layer {hashing.digest} where its configuration names {diff_id}.", remedy="The image is broken."
        )


class _Hashing:
    """Passes a stream on and takes the digest of what went through."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._hasher = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._hasher.update(data)
        return data

    @property
    def digest(self) -> str:
        return f"sha256:{self._hasher.hexdigest()}"


class OverlayLayer(Layer):
    """A single layer, whose whiteouts stay as what overlayfs understands. As root with the owners that the archive names."""

    def _whiteout(self, parent: Path, name: str) -> None:
        if name == OPAQUE:
            make_opaque(parent)
            return
        path = parent / name.removeprefix(WHITEOUT)
        if path.name in ("", ".", ".."):
            return
        if not os.path.lexists(path):
            make_whiteout(path)
        elif path.is_dir() and not path.is_symlink():
            # This layer has a directory of that name too: nothing of those below is to be seen in it.
            make_opaque(path)

    def _make_directory(self, path: Path) -> None:
        if is_whiteout(path):
            path.unlink()
            path.mkdir()
            make_opaque(path)
        else:
            super()._make_directory(path)

    def _make_parent(self, path: Path, member: str) -> None:
        if is_whiteout(path):
            self._make_directory(path)
        else:
            super()._make_parent(path, member)

    def _clear_way(self, path: Path, member: tarfile.TarInfo) -> None:
        if not (member.isdir() and is_whiteout(path)):
            super()._clear_way(path, member)
