"""An image's tree of files as one read-only file system image, which a machine has as a disk: made once, kept by the tree's content."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import BackendUnavailable, CapabilityError, InfrastructureError
from agentenv.isolation.artefacts.storing import make_once
from agentenv.isolation.contract import RootFilesystem
from agentenv.isolation.overlay import flatten
from agentenv.isolation.vm.disk import find_tool
from agentenv.isolation.vm.superblock import Filesystem, require_whole

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many bytes of it are done, and of how many (0: unknown)."""

IDENTITY = "identity"
"""The layer that names a sandbox (agentenv.node.identity): the guest's agent writes those files itself."""

SNAPSHOT_LAYERS = "layers"
"""The directory of snapshots' layers (agentenv.node.layers), where each has a directory of its own."""

RECORD = "image.json"
"""Lies beside the tree of an image that never changes (agentenv.images.store), whose directory is then named by its content."""


@dataclass(frozen=True, slots=True)
class RootImage:
    """The file `path` holds the image in the format `filesystem`."""

    path: Path
    filesystem: Filesystem


def root_image(root: RootFilesystem, directory: Path, progress: Progress | None = None) -> RootImage:
    """The root image of `root`, kept in `directory`; seconds the first time.

    Raises `CapabilityError` for a root that is put together from directories of this machine, `BackendUnavailable` where no program
    can make it, `InfrastructureError` when the making fails (a full disk) or the kept one was cut off.
    """
    layers = plain_layers(root)
    filesystem, program = _maker()
    key = _content_key(layers)
    path = directory / f"{key}.{filesystem}"

    def make(partial: Path) -> None:
        if progress is not None:
            progress(f"making the root image of {root.image}", 0, 0)
        with _one_tree(layers, directory) as tree:
            command = _erofs_command(program, tree, partial, key) if filesystem == "erofs" else _squashfs_command(program, tree, partial)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no reason was given"]
            raise InfrastructureError(
                f"the root image of {root.image} could not be made: {last[0]}.", remedy=f"Is there room for it in {directory}?"
            )

    make_once(path, make)
    require_whole(path, filesystem)
    return RootImage(path, filesystem)


def plain_layers(root: RootFilesystem) -> tuple[Path, ...]:
    """The layers that hold all files of `root` together, the topmost first. Raises `CapabilityError` where it has several trees."""
    if len(root.trees) != 1:
        raise CapabilityError(
            f"the image {root.image!r} cannot be started in a virtual machine: it is put together from directories of this machine, and "
            "the machine has a disk of its own.",
            remedy="Use the image `debian` (`agentenv image build debian` makes it), one of a registry, `dir:PATH` or `tar:PATH`.",
        )
    return tuple(path for path in root.trees[0].lowers if path.name != IDENTITY)


@contextmanager
def _one_tree(layers: Sequence[Path], directory: Path) -> Iterator[Path]:
    """What the layers show together as one tree, beside the root images for as long as it is needed."""
    if len(layers) == 1:
        yield layers[0]
        return
    with tempfile.TemporaryDirectory(prefix=".merged-", dir=directory) as scratch:
        tree = Path(scratch) / "root"
        tree.mkdir()
        flatten(layers, tree, linked=frozenset(layer for layer in layers if _stays(layer)))
        yield tree


def _maker() -> tuple[Filesystem, str]:
    if program := find_tool("mkfs.erofs"):
        return "erofs", program
    if program := find_tool("mksquashfs"):
        return "squashfs", program
    raise BackendUnavailable(
        "no program can make a root image: neither mkfs.erofs nor mksquashfs is installed.", remedy="apt-get install erofs-utils"
    )


def _erofs_command(program: str, tree: Path, target: Path, key: str) -> list[str]:
    # Not compressed: pages of the image are then shared by all guests through the host's page cache, and reading costs the guest nothing.
    owner = () if os.geteuid() == 0 else ("--all-root",)
    return [program, "--quiet", f"-U{uuid.UUID(key[:32])}", *owner, str(target), str(tree)]


def _squashfs_command(program: str, tree: Path, target: Path) -> list[str]:
    owner = () if os.geteuid() == 0 else ("-all-root",)
    return [program, str(tree), str(target), "-noI", "-noD", "-noF", "-noX", "-no-progress", "-quiet", *owner]


def forget_root_images(tree: Path, directory: Path) -> None:
    """Removes from `directory` what was made of the kept image with that `tree` alone. A machine that uses it goes on."""
    for owner in (b"root", b"user"):
        for filesystem in ("erofs", "squashfs"):
            with suppress(PermissionError):  # the store is another user's
                (directory / f"{_key(owner, [_kept_line(_kept_name(tree))])}.{filesystem}").unlink(missing_ok=True)


def _content_key(layers: Sequence[Path]) -> str:
    """32 hexadecimal digits: of the layers' names where those stand for their content, else of every file's metadata."""
    return _key(b"root" if os.geteuid() == 0 else b"user", (line for layer in layers for line in _layer_lines(layer)))


def _layer_lines(layer: Path) -> Iterator[bytes]:
    if _stays(layer):
        yield _kept_line(_kept_name(layer))
        return
    yield f" {layer}\n".encode()
    yield from _described(os.fspath(layer))


def _kept_line(kept: str) -> bytes:
    return f" kept {kept}\n".encode()


def _key(owner: bytes, lines: Iterable[bytes]) -> str:
    digest = hashlib.sha256(owner)
    for line in lines:
        digest.update(line)
    return digest.hexdigest()[:32]


def _stays(layer: Path) -> bool:
    """Whether a layer is one that never changes: of a kept image, or of a snapshot, whose directory is named after it."""
    return (layer.parent / RECORD).is_file() or layer.parent.parent.name == SNAPSHOT_LAYERS


def _kept_name(layer: Path) -> str:
    return f"{layer.parent.name}/{layer.name}"


def _described(directory: str) -> list[bytes]:
    lines, pending = [], [directory]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                facts = (
                    status.st_mode,
                    status.st_uid,
                    status.st_gid,
                    status.st_size,
                    status.st_ino,
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                )
                lines.append(f"{entry.path}\0{facts}\n".encode(errors="surrogateescape"))
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return sorted(lines)
