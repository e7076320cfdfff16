"""An image's tree of files as one read-only file system image, which a machine has as a disk: made once, kept by the tree's content."""

from __future__ import annotations

import hashlib
import os
import subprocess
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentenv.errors import BackendUnavailable, CapabilityError, InfrastructureError
from agentenv.isolation.artefacts.storing import make_once
from agentenv.isolation.contract import RootFilesystem
from agentenv.isolation.vm.disk import find_tool

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many bytes of it are done, and of how many (0: unknown)."""

IDENTITY = "identity"
"""The layer that names a sandbox (agentenv.node.identity): the guest's agent writes those files itself."""

RECORD = "image.json"
"""Lies beside the tree of an image that never changes (agentenv.images.store), whose directory is then named by its content."""


@dataclass(frozen=True, slots=True)
class RootImage:
    """The file `path` holds the image in the format `filesystem`."""

    path: Path
    filesystem: Literal["erofs", "squashfs"]


def root_image(root: RootFilesystem, directory: Path, progress: Progress | None = None) -> RootImage:
    """The root image of `root`, kept in `directory`; seconds the first time.

    Raises `CapabilityError` for a root that is more than one plain tree, `BackendUnavailable` where no program can make it,
    `InfrastructureError` when the making fails (a full disk).
    """
    tree = plain_tree(root)
    filesystem, program = _maker()
    key = _content_key(tree)
    path = directory / f"{key}.{filesystem}"

    def make(partial: Path) -> None:
        if progress is not None:
            progress(f"making the root image of {root.image}", 0, 0)
        command = _erofs_command(program, tree, partial, key) if filesystem == "erofs" else _squashfs_command(program, tree, partial)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no reason was given"]
            raise InfrastructureError(
                f"the root image of {root.image} could not be made: {last[0]}.", remedy=f"Is there room for it in {directory}?"
            )

    make_once(path, make)
    return RootImage(path, filesystem)


def plain_tree(root: RootFilesystem) -> Path:
    """The one directory that holds all files of `root`. Raises `CapabilityError` where it has several."""
    if len(root.trees) != 1:
        raise CapabilityError(
            f"the image {root.image!r} cannot be started in a virtual machine: it is put together from directories of this machine, and "
            "the machine has a disk of its own.",
            remedy="Use the image `debian` (`agentenv image build debian` makes it), `dir:PATH` or `tar:PATH`.",
        )
    layers = [path for path in root.trees[0].lowers if path.name != IDENTITY]
    if len(layers) != 1:
        raise CapabilityError(
            f"a snapshot of {root.image!r} that holds directories cannot be started in a virtual machine, whose files lie on a disk.",
            remedy="Start it with the isolation that it was taken with.",
        )
    return layers[0]


def _maker() -> tuple[Literal["erofs", "squashfs"], str]:
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


def forget_root_images(kept: str, directory: Path) -> None:
    """Removes from `directory` what was made of the image that was kept (agentenv.images) as `kept`. A machine that uses it goes on."""
    for owner in ("root", "user"):
        for filesystem in ("erofs", "squashfs"):
            with suppress(PermissionError):  # the store is another user's
                (directory / f"{_kept_key(owner, kept)}.{filesystem}").unlink(missing_ok=True)


def _kept_key(owner: str, kept: str) -> str:
    return hashlib.sha256(f"{owner} kept {kept}".encode()).hexdigest()[:32]


def _content_key(tree: Path) -> str:
    """32 hexadecimal digits: of the image's name where that stands for its content, else of every file's metadata."""
    owner = "root" if os.geteuid() == 0 else "user"
    if (tree.parent / RECORD).is_file():
        return _kept_key(owner, tree.parent.name)
    digest = hashlib.sha256(f"{owner} {tree}".encode())
    for line in _described(os.fspath(tree)):
        digest.update(line)
    return digest.hexdigest()[:32]


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
