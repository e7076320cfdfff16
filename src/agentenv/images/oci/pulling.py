"""Brings an image here: its documents are read and checked, its layers come side by side, and only then the image is there.

A layer is kept once, under the digest of its uncompressed archive, for all images that have it. What was fetched of a blob when a pull
broke off lies in `images/downloads` and is gone on with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from agentenv.errors import CapabilityError
from agentenv.images.files import allocated_bytes
from agentenv.images.held import Held, hold
from agentenv.images.kept import KeptImages, Progress
from agentenv.images.oci.accounts import finish
from agentenv.images.oci.documents import (
    Descriptor,
    ImageConfig,
    Index,
    Manifest,
    Platform,
    RunConfig,
    check_digest,
    choose,
    decode,
    is_index,
)
from agentenv.images.oci.layer import unpack_layer
from agentenv.isolation.overlay import Merged, require_few

AT_ONCE = 4
"""Layers of one image that are fetched and unpacked at the same time."""

MOST_INDEXES = 3
"""Indexes that may name one another on the way to an image."""


class Source(Protocol):
    """Where an image comes from: a registry, or files. `name` is what errors call it."""

    name: str

    def root(self) -> tuple[bytes, str]: ...

    def document(self, descriptor: Descriptor) -> tuple[bytes, str]: ...

    def config(self, descriptor: Descriptor) -> bytes: ...

    def blob(self, descriptor: Descriptor, target: Path, counted: Callable[[int, int], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class Pulled:
    """An image that is here: `digest` (its id, without `sha256:`), and the digest of the manifest that it came by."""

    digest: str
    manifest: str


def pull(images: KeptImages, layers: KeptImages, source: Source, progress: Progress | None = None) -> Pulled:
    """Makes the image of `source` one of `images`, and its layers some of `layers`; what is here already is not fetched again.

    Raises `NotFound`, `CapabilityError` for what is no image or none for this machine, `InfrastructureError` when it breaks off.
    """
    content, manifest = _manifest(source)
    config = source.config(manifest.config)
    described = decode(config, ImageConfig, source.name)
    _check(described, manifest, source.name)
    wanted = dict(zip(described.rootfs.diff_ids, manifest.layers, strict=True))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="pull") as pool:
        tasks = [pool.submit(_obtain_layer, images, layers, source, diff_id, blob, progress) for diff_id, blob in wanted.items()]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    digest = hashlib.sha256(config).hexdigest()
    lowers = stack(layers, described.rootfs.diff_ids)
    run = described.config or RunConfig()
    facts = {
        "layers": list(described.rootfs.diff_ids),
        "config": msgspec.to_builtins(described),
        "shared": sum(allocated_bytes(layer) for layer in lowers),
    }
    images.obtain(
        image_id(digest), f"sha256:{digest}", lambda target: finish(Merged(lowers), run.user, run.working_dir or "/", target), facts
    )
    return Pulled(digest, f"sha256:{hashlib.sha256(content).hexdigest()}")


def downloading(images: KeptImages) -> Held:
    """The directory of what is fetched, kept from being swept away until the result is released; a pull needs it."""
    downloads = images.directory / "downloads"
    while True:
        downloads.mkdir(parents=True, exist_ok=True)
        if (held := hold(downloads)) is not None:
            return held


def image_id(digest: str) -> str:
    """Under which name the image is kept."""
    return f"oci-{digest}"


def layer_id(diff_id: str) -> str:
    """Under which name the layer is kept."""
    return check_digest(diff_id, "a layer")


def stack(layers: KeptImages, diff_ids: tuple[str, ...]) -> tuple[Path, ...]:
    """The layers' directories, the topmost first, held from now on. Raises `KeyError` with the id of one that is gone."""
    found = []
    for diff_id in dict.fromkeys(reversed(diff_ids)):
        path = layers.held(layer_id(diff_id))
        if path is None:
            raise KeyError(diff_id)
        found.append(path)
    return tuple(found)


def _manifest(source: Source) -> tuple[bytes, Manifest]:
    content, media_type = source.root()
    for _ in range(MOST_INDEXES):
        if not is_index(content, media_type):
            return content, decode(content, Manifest, source.name)
        chosen = choose(decode(content, Index, source.name), Platform.of_this_machine(), source.name)
        content, media_type = source.document(chosen)
    raise CapabilityError(f"{source.name} is an index of indexes of indexes, which no image is.")


def _check(config: ImageConfig, manifest: Manifest, name: str) -> None:
    here, made_for = Platform.of_this_machine(), Platform(config.architecture, config.os, config.variant)
    if not here.fits(made_for):
        raise CapabilityError(f"{name} is an image for {made_for}, and this machine is {here}.", remedy="Use an image for this machine.")
    if len(manifest.layers) != len(config.rootfs.diff_ids):
        raise CapabilityError(
            f"{name} is broken: its manifest has {len(manifest.layers)} layers, its configuration {len(config.rootfs.diff_ids)}."
        )
    require_few(config.rootfs.diff_ids, name)


def _obtain_layer(
    images: KeptImages, layers: KeptImages, source: Source, diff_id: str, blob: Descriptor, progress: Progress | None
) -> None:
    hexadecimal = layer_id(diff_id)
    label = hexadecimal[:12]

    def make(target: Path) -> None:
        path = images.directory / "downloads" / check_digest(blob.digest, source.name)
        source.blob(blob, path, lambda done, size: progress(f"{label} fetching", done, size) if progress else None)
        try:
            unpack_layer(
                path, diff_id, target, source.name, lambda done, size: progress(f"{label} unpacking", done, size) if progress else None
            )
        finally:
            path.unlink()

    layers.obtain(hexadecimal, diff_id, make)
    if progress is not None:
        progress(f"{label} done", blob.size, blob.size)
