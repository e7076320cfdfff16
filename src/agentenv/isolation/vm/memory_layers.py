"""The memory files of a checkpoint: one that is whole, or layers of which each holds what was written after the one before.

A snapshot of what has changed lies in a sparse file. It is put together with what it builds on only when it is restored, since most
checkpoints never are. Until then the directory holds, besides the new layer, links to the older ones, so that it needs no other directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentenv.errors import InfrastructureError
from agentenv.isolation.vm.disk import clone_disk

WHOLE = "memory"
_LAYER = "memory.{:02}"
_PARTIAL = "memory.partial"
MOST_LAYERS = 16
"""Of a checkpoint with more the next one is taken whole, so that a restore never has to put together more."""


def layers(directory: Path) -> list[Path]:
    """The files that make up the memory, the oldest first. Raises OSError."""
    whole = directory / WHOLE
    if not whole.exists() and (found := sorted(directory.glob("memory.[0-9][0-9]"))):
        return found
    return [whole] if whole.exists() else []  # looked for anew: they may have been put together in between


def build_on(parent: Path, directory: Path) -> Path:
    """Links the layers of the checkpoint `parent` into `directory`, and returns where the next layer goes. Raises OSError."""
    with _locked(parent, fcntl.LOCK_SH):
        older = layers(parent)
        for number, layer in enumerate(older):
            _link(layer, directory / _LAYER.format(number))
    return directory / _LAYER.format(len(older))


def build_on_file(descriptor: int, directory: Path) -> Path:
    """Links the open file of a whole memory into `directory` as the oldest layer, and returns where the next goes. Raises OSError."""
    _link(Path(f"/proc/self/fd/{descriptor}"), directory / _LAYER.format(0))
    return directory / _LAYER.format(1)


def _link(layer: Path, target: Path) -> None:
    """Copies it where it cannot be linked: to another file system, or one that was removed while it is mapped."""
    place = os.open(target.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a directory's descriptor this is linkat(2), which can follow a link of /proc to the file; link(2) does not.
        os.link(layer, target.name, dst_dir_fd=place, follow_symlinks=True)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ENOENT):
            raise
        clone_disk(layer, target)
    finally:
        os.close(place)


def whole(directory: Path, size: int) -> Path:
    """The one file with all of the memory of `size` bytes, put together from the layers where that was not done yet.

    Raises `InfrastructureError` for a file that is missing or cut off, and when the disk is full.
    """
    path = directory / WHOLE
    if not path.exists():
        with _locked(directory, fcntl.LOCK_EX):
            if not path.exists():
                _merge(directory)
    if (found := path.stat().st_size) != size:
        raise InfrastructureError(f"{path} has {found} bytes instead of {size}: it was cut off.", remedy="Make the checkpoint anew.")
    return path


def _merge(directory: Path) -> None:
    parts = layers(directory)
    partial = directory / _PARTIAL
    partial.unlink(missing_ok=True)
    try:
        clone_disk(parts[0], partial)
        for layer in parts[1:]:
            _lay_over(layer, partial)
        partial.chmod(0o644)  # also for a jailed monitor of another user
        partial.rename(directory / WHOLE)
    except OSError as error:
        raise InfrastructureError(f"the memory in {directory} could not be put together: {error.strerror}.") from error
    finally:
        partial.unlink(missing_ok=True)
    for layer in parts:
        layer.unlink()


def _lay_over(layer: Path, target: Path) -> None:
    """Copies to `target` what `layer` holds, its holes left out. Raises OSError."""
    with layer.open("rb") as reading, target.open("r+b") as writing:
        for start, end in data_ranges(reading.fileno()):
            while start < end:
                start += _copy(reading.fileno(), writing.fileno(), start, end - start)


def _copy(reading: int, writing: int, position: int, length: int) -> int:
    copied = os.copy_file_range(reading, writing, length, position, position)
    if copied == 0:
        raise OSError(errno.EIO, "a layer of the memory is cut off")
    return copied


def data_ranges(descriptor: int) -> Iterator[tuple[int, int]]:
    """From where to where a sparse file holds data, in bytes. Raises OSError."""
    size, position = os.fstat(descriptor).st_size, 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        position = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, position


@contextmanager
def _locked(directory: Path, how: int) -> Iterator[None]:
    # The directory itself is locked by the node for as long as somebody uses it. Whoever waits here looks anew when his turn comes.
    descriptor = _open_first(directory)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _open_first(directory: Path) -> int:
    while parts := layers(directory):
        try:
            return os.open(parts[0], os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # they were put together in between
    raise InfrastructureError(f"{directory} holds no memory of a machine.", remedy="Make the checkpoint anew.")
