"""The JSON documents that describe an image (https://github.com/opencontainers/image-spec), as far as they are used here.

Docker's older names for the same documents (https://distribution.github.io/distribution/spec/manifest-v2-2/) are read alike.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from agentenv.errors import CapabilityError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
ACCEPTED = ", ".join((INDEX, MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST))

LARGEST_DOCUMENT = 4 << 20
"""Bytes of a manifest, index or configuration, as registries limit them."""

DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_MACHINES = {"x86_64": ("amd64", None), "aarch64": ("arm64", "v8"), "armv7l": ("arm", "v7"), "riscv64": ("riscv64", None)}
Document = TypeVar("Document")


class Platform(msgspec.Struct, frozen=True):
    """What an image runs on, in the words of Go: `amd64`, `linux`, and for ARM the variant."""

    architecture: str
    os: str = "linux"
    variant: str | None = None

    @classmethod
    def of_this_machine(cls) -> Platform:
        """This machine's."""
        machine = platform.machine()
        architecture, variant = _MACHINES.get(machine, (machine, None))
        return cls(architecture, "linux", variant)

    def fits(self, other: Platform) -> bool:
        """Whether what was made for `other` runs here; a variant that is not named fits any."""
        same = (self.os, self.architecture) == (other.os, other.architecture)
        return same and (self.variant is None or other.variant is None or self.variant == other.variant)

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))


class Descriptor(msgspec.Struct, frozen=True):
    """Where a document or layer is found, by its digest; `size` in bytes."""

    digest: str
    size: int
    mediaType: str = ""
    platform: Platform | None = None
    annotations: Mapping[str, str] = {}
    urls: tuple[str, ...] = ()


class Manifest(msgspec.Struct, frozen=True):
    """One image for one platform: its configuration and its layers, the lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    schemaVersion: int = 2


class Index(msgspec.Struct, frozen=True):
    """The same image for several platforms."""

    manifests: tuple[Descriptor, ...]


class RootFs(msgspec.Struct, frozen=True):
    """The digests of the layers' uncompressed archives, the lowest first."""

    diff_ids: tuple[str, ...]


class RunConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """What a program started from the image finds."""

    user: str = ""
    env: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    working_dir: str = ""
    labels: Mapping[str, str] | None = None
    exposed_ports: Mapping[str, object] | None = None
    stop_signal: str | None = None


class ImageConfig(msgspec.Struct, frozen=True):
    """An image's configuration; its digest is the image's id. `created` as RFC 3339 has it."""

    rootfs: RootFs
    architecture: str
    os: str = "linux"
    variant: str | None = None
    created: str | None = None
    config: RunConfig | None = None


def decode(content: bytes, kind: type[Document], what: str) -> Document:
    """Reads a document. Raises `CapabilityError`, which names it, where it is not what it should be."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise CapabilityError(f"{what} is no {kind.__name__.lower()} of an image: {error}.") from error


def is_index(content: bytes, media_type: str) -> bool:
    """Whether a document lists images instead of being one; by its own `mediaType`, else by what is in it."""
    if media_type in (INDEX, DOCKER_INDEX):
        return True
    if media_type in (MANIFEST, DOCKER_MANIFEST):
        return False
    return b'"manifests"' in content


def choose(index: Index, here: Platform, what: str) -> Descriptor:
    """The image of the index that runs on `here`, one of the same variant before others. Raises `CapabilityError` with those there are."""
    fitting = [entry for entry in index.manifests if entry.platform is None or here.fits(entry.platform)]
    if not fitting:
        offered = ", ".join(sorted({str(entry.platform) for entry in index.manifests if entry.platform and entry.platform.os != "unknown"}))
        raise CapabilityError(f"{what} has no image for {here}; it has {offered or 'none'}.", remedy="Use an image for this machine.")
    return min(fitting, key=lambda entry: entry.platform is None or entry.platform.variant != here.variant)


def check_digest(digest: str, what: str) -> str:
    """The hexadecimal part. Raises `CapabilityError` for another algorithm than SHA-256, or something that could be a path."""
    if not DIGEST.fullmatch(digest):
        raise CapabilityError(f"{what} has the digest {digest!r}; only sha256:… with 64 hexadecimal digits can be checked.")
    return digest.removeprefix("sha256:")
