"""The images `dir:PATH`: a root tree of this machine, used read-only and as it is."""

from __future__ import annotations

from pathlib import Path

from agentenv.errors import CapabilityError, NotFound
from agentenv.images.layout import SYSTEM_PATH, tree_name
from agentenv.isolation.contract import RootFilesystem, Tree

PROGRAM_DIRECTORIES = ("bin", "usr/bin", "sbin", "usr/sbin")


def resolve(path: Path, home: Path) -> RootFilesystem:
    """The tree at `path` as an image. Raises `NotFound` where there is no directory, `CapabilityError` where it cannot be a root."""
    real = path.expanduser().resolve()
    if not real.is_dir():
        raise NotFound(
            f"dir:{path} cannot be used: {'it is no directory' if real.exists() else 'it does not exist'}.", remedy="Name a root tree."
        )
    if home.resolve().is_relative_to(real):
        raise CapabilityError(
            f"dir:{path} cannot be used: it contains AGENTENV_HOME ({home}), where sandboxes write.",
            remedy="Use the image `host` for this machine's own programs, or another AGENTENV_HOME.",
        )
    return plain_root(real, f"dir:{real}")


def plain_root(root: Path, reference: str) -> RootFilesystem:
    """One overlay over `root`; raises `CapabilityError` when there is nowhere a program could be in it."""
    if not any((root / name).is_dir() or (root / name).is_symlink() for name in PROGRAM_DIRECTORIES):
        raise CapabilityError(
            f"{reference} is no root file system: it has none of {', '.join(PROGRAM_DIRECTORIES)}.",
            remedy="A root tree looks like the one that `debootstrap` or `docker export` makes.",
        )
    cwd = "/root" if (root / "root").is_dir() else "/"
    return RootFilesystem((Tree("/", tree_name("/"), (root,)),), reference, {"PATH": ":".join(SYSTEM_PATH)}, cwd=cwd)
