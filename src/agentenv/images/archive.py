"""The images `tar:PATH`: an archive of a root tree, unpacked once and kept by the digest of its content."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from agentenv.errors import NotFound
from agentenv.images.directory import plain_root
from agentenv.images.extract import extract_archive
from agentenv.images.files import write_durably
from agentenv.images.kept import KeptImages, Progress
from agentenv.isolation.contract import RootFilesystem

BLOCK = 1 << 20


def resolve(images: KeptImages, path: Path, progress: Progress | None) -> RootFilesystem:
    """The archive at `path` as an image. Raises `NotFound`, or `CapabilityError` with the reason why it is no usable archive."""
    path = path.expanduser().absolute()
    if not path.is_file():
        raise NotFound(
            f"tar:{path} cannot be used: {'it is no file' if path.exists() else 'it does not exist'}.", remedy="Name a tar archive."
        )
    digest = _remembered_digest(images, path, progress)

    def make(target: Path) -> None:
        extract_archive(path, target, progress)
        plain_root(target, f"tar:{path}")

    root = images.obtain(f"tar-{digest}", f"sha256:{digest}", make)
    return plain_root(root, f"sha256:{digest}")


def resolve_digest(images: KeptImages, digest: str) -> RootFilesystem:
    """The kept image whose archive has that SHA-256, or the only one whose digest starts so (12 digits at least); raises `NotFound`."""
    found = [path.name for path in images.directory.glob(f"tar-{digest}*")] if re.fullmatch("[0-9a-f]{12,64}", digest) else []
    root = images.held(found[0]) if len(found) == 1 else None
    if root is None:
        raise NotFound(f"there is no image sha256:{digest} in {images.directory}.", remedy="Use `tar:PATH` with the archive it came from.")
    return plain_root(root, f"sha256:{found[0].removeprefix('tar-')}")


def _remembered_digest(images: KeptImages, path: Path, progress: Progress | None) -> str:
    """The SHA-256 of the file, read anew only when the file's size, time or identity differ from when it was last read."""
    status = path.stat()
    signature = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    memory = images.directory / "seen" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"
    try:
        known = json.loads(memory.read_text())
        if known["signature"] == signature:
            return str(known["digest"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        pass
    digest = _digest(path, status.st_size, progress)
    memory.parent.mkdir(parents=True, exist_ok=True)
    write_durably(memory, {"path": str(path), "signature": signature, "digest": digest})
    return digest


def _digest(path: Path, size: int, progress: Progress | None) -> str:
    hasher, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            hasher.update(block)
            done += len(block)
            if progress is not None:
                progress(f"reading {path.name}", done, size)
    return hasher.hexdigest()
