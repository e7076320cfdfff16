"""Writes a kept image into one file, an archive of an OCI layout: `oci:FILE`, `podman load` and `docker load` read it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from agentenv.images.extract import KEPT_XATTRS, OPAQUE, WHITEOUT, XATTR
from agentenv.images.kept import Progress
from agentenv.images.oci.documents import CONFIG, MANIFEST, Platform
from agentenv.isolation.contract import RootFilesystem
from agentenv.isolation.overlay import OPAQUE_ATTRIBUTES, WHITEOUT_DEVICE, is_opaque

LAYER = "application/vnd.oci.image.layer.v1.tar"
BLOCK = 1 << 20
_NAME = "org.opencontainers.image.ref.name"


def export_image(
    root: RootFilesystem, target: Path, *, name: str, config: Mapping[str, Any] | None = None, progress: Progress | None
) -> None:
    """Writes the one tree of `root` to the new file `target`, a layer for each of its directories.

    `config` is the image's configuration where it has one. The file is there when it is complete. Raises OSError.
    """
    partial = target.with_name(f".{target.name}.partial")
    try:
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
            layers = []
            lowers = root.trees[0].lowers[::-1]
            for number, layer in enumerate(lowers, 1):
                if progress is not None:
                    progress(f"writing layer {number} of {len(lowers)}", number, len(lowers))
                layers.append(_add_layer(archive, layer, target.parent))
            document = _config(root, config, [layer["digest"] for layer in layers])
            manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": _add_blob(archive, document, CONFIG), "layers": layers}
            described = _add_blob(archive, json.dumps(manifest).encode(), MANIFEST) | {"annotations": {_NAME: name}}
            _add(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [described]}).encode())
            _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def write_layer(layer: Path, file: BinaryIO) -> None:
    """The directory of a layer as the archive that an image has of it, whiteouts included."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _write(archive, layer, "")


def _write(archive: tarfile.TarFile, directory: Path, name: str) -> None:
    if name and is_opaque(directory):
        _add(archive, f"{name}/{OPAQUE}", b"")
    for path in sorted(directory.iterdir()):
        inside = f"{name}/{path.name}".lstrip("/")
        status = path.lstat()
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == WHITEOUT_DEVICE:
            _add(archive, f"{name}/{WHITEOUT}{path.name}".lstrip("/"), b"")
            continue
        member = archive.gettarinfo(path, inside)
        if member is None or member.ischr() or member.isblk():
            continue
        member.uname = member.gname = ""
        member.pax_headers = {f"{XATTR}{attribute}": value for attribute, value in _attributes(path)}
        if member.isreg():
            with path.open("rb") as content:
                archive.addfile(member, content)
        else:
            archive.addfile(member)
        if member.isdir():
            _write(archive, path, inside)


def _attributes(path: Path) -> Iterator[tuple[str, str]]:
    for name in os.listxattr(path, follow_symlinks=False):
        if name not in OPAQUE_ATTRIBUTES and name.startswith(KEPT_XATTRS):
            yield name, os.getxattr(path, name, follow_symlinks=False).decode("utf-8", "surrogateescape")


def _add_layer(archive: tarfile.TarFile, layer: Path, scratch: Path) -> dict[str, Any]:
    with tempfile.TemporaryFile(dir=scratch) as file:
        write_layer(layer, file)
        size = file.tell()
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        member = tarfile.TarInfo(f"blobs/sha256/{digest}")
        member.size = size
        archive.addfile(member, file)
    return {"mediaType": LAYER, "digest": f"sha256:{digest}", "size": size}


def _add_blob(archive: tarfile.TarFile, content: bytes, media_type: str) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    _add(archive, f"blobs/sha256/{digest}", content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _config(root: RootFilesystem, config: Mapping[str, Any] | None, diff_ids: Sequence[str]) -> bytes:
    here = Platform.of_this_machine()
    known = dict(config or {"architecture": here.architecture, "os": here.os})
    run = dict(known.get("config") or {})
    run |= {"User": root.user, "WorkingDir": root.cwd, "Env": [f"{name}={value}" for name, value in root.env.items()]}
    kept = {name: value for name, value in known.items() if name in ("architecture", "os", "variant", "created") and value is not None}
    run = {name: value for name, value in run.items() if value is not None}
    return json.dumps({**kept, "config": run, "rootfs": {"type": "layers", "diff_ids": list(diff_ids)}}).encode()
