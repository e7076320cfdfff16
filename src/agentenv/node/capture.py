"""What is done with the files of a captured layer: copied, compared with what is kept, made durable. Blocks; runs in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from agentenv.images.files import allocated_bytes, remove_tree, sync_tree
from agentenv.node import mapped
from agentenv.node.copying import TreeCopier
from agentenv.node.sharing import layer_digest, share_unchanged


def copy_uppers(uppers: Sequence[Path], staging: Path, stop: Callable[[], bool]) -> int:
    """Copies the trees that were written to into `staging`, each under its own name; returns how many entries they have.

    Raises OSError, or `InvalidState` when `stop` says so.
    """
    try:
        return copy_as_we_are(uppers, staging, stop)
    except PermissionError:
        if not mapped.may_help():
            raise
    for partial in staging.iterdir():
        remove_tree(partial)
    return int(mapped.call("copy", staging, *uppers))


def prepare_layer(staging: Path, layers: Path, earlier: Sequence[Path]) -> tuple[str, int]:
    """Names a layer by the digest of its content, shares what the `earlier` ones have too, and makes it durable.

    Returns the name, and the bytes that it adds to the disk: 0 when it is among `layers` already. Raises OSError.
    """
    try:
        return prepare_as_we_are(staging, layers, earlier)
    except PermissionError:
        if not mapped.may_help():
            raise
    identifier, size = mapped.call("prepare", staging, layers, *earlier)
    return str(identifier), int(size)


def copy_as_we_are(uppers: Sequence[Path], staging: Path, stop: Callable[[], bool]) -> int:
    """`copy_uppers` with the rights of this process only."""
    copier = TreeCopier(stop)
    for upper in uppers:
        if any(os.scandir(upper)):
            target = staging / upper.name
            target.mkdir()
            copier.copy(upper, target)
    return copier.copied.entries


def prepare_as_we_are(staging: Path, layers: Path, earlier: Sequence[Path]) -> tuple[str, int]:
    """`prepare_layer` with the rights of this process only."""
    identifier = f"l{layer_digest(staging)[:40]}"
    if (layers / identifier).is_dir():
        return identifier, 0
    saved = sum(share_unchanged(staging, path) for path in earlier)
    size = allocated_bytes(staging) - saved
    sync_tree(staging)
    return identifier, size
