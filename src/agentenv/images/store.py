"""Finds or makes what an image reference names, whatever its scheme."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from agentenv.errors import CapabilityError, ConfigError, InfrastructureError, NotFound
from agentenv.images import archive, debian, directory, host
from agentenv.images.kept import Image, KeptImages, Progress
from agentenv.images.layout import SYSTEM_PATH, tree_name
from agentenv.images.oci import Credentials, OciImages, Reference
from agentenv.images.oci.accounts import finish
from agentenv.images.reach import Reach
from agentenv.isolation.contract import RootFilesystem, Tree
from agentenv.isolation.overlay import Merged
from agentenv.units import format_size, parse_size

SCHEMES = (
    "`host` (this machine's programs and the running Python), `debian` (a minimal Debian with Python), "
    "`dir:PATH` (a root tree), `tar:PATH` (an archive of one), "
    "`REGISTRY/NAME:TAG` (an image of a registry, such as docker.io/library/python:3.12), `oci:PATH` (one in files), "
    "`docker-daemon:NAME` or `podman:NAME` (one of a daemon), "
    "`sha256:DIGEST` (one of `agentenv image ls`)"
)
SCRATCH = "scratch"
"""Nothing but the places that a sandbox mounts something on, for builds."""

QUOTA = "AGENTENV_IMAGE_QUOTA"


def default_image(*, disk: bool) -> str:
    """What a sandbox starts from when no image is named: `debian` where its files are a `disk` of its own, else `host`."""
    return debian.NAME if disk else host.NAME


class ImageStore(KeptImages):
    """The images of one AGENTENV_HOME, kept ones and those that are resolved anew each time.

    `quota` bounds what the kept ones take of the disk, in bytes; by default the size in AGENTENV_IMAGE_QUOTA, else they may take all.
    Registries are asked as far away as `reach` says, by default anywhere.
    """

    def __init__(
        self, home: Path, *, pinned: Callable[[], Mapping[str, str]] = dict, quota: int | None = None, reach: Reach | None = None
    ) -> None:
        super().__init__(home, pinned=pinned)
        self.quota = _quota_of_environment() if quota is None else quota
        self._oci = OciImages.beside(self, reach)

    def resolve(self, reference: str, progress: Progress | None = None) -> RootFilesystem:
        """The root file system that `reference` names, made or pulled first where it has to be.

        Raises `NotFound` for an unknown scheme or a missing path, `CapabilityError` for what cannot be an image, `InfrastructureError`
        when the disk is full or a registry out of reach.
        """
        scheme, _, rest = reference.partition(":")
        if reference == host.NAME:
            return host.resolve(self)
        if reference == SCRATCH:
            root = self.obtain(SCRATCH, SCRATCH, lambda target: finish(Merged(()), "root", "/", target))
            return RootFilesystem((Tree("/", tree_name("/"), (root,)),), SCRATCH, {"PATH": ":".join(SYSTEM_PATH)}, cwd="/")
        if reference == debian.NAME:
            return debian.resolve(self)
        if scheme == "dir" and rest:
            return directory.resolve(Path(rest), self.home)
        if scheme == "tar" and rest:
            return self._within_quota(archive.resolve(self, Path(rest), progress))
        if scheme == "sha256" and rest:
            return self._oci.of_digest(rest) or archive.resolve_digest(self, rest)
        if (name := self._oci.canonical(reference)) is not None:
            return self._within_quota(self._oci.resolve(name, progress))
        raise NotFound(f"there is no image {reference!r}.", remedy=f"An image is one of {SCHEMES}.")

    def pull(self, reference: str, progress: Progress | None = None) -> RootFilesystem:
        """The image that `reference` means at its source now, also when an earlier one is here. Raises what `resolve` raises."""
        name = self._oci.canonical(reference)
        if name is None:
            raise CapabilityError(
                f"{reference!r} cannot be pulled.",
                remedy="A registry's image is written REGISTRY/NAME:TAG, or REGISTRY/NAME@sha256: and 64 hexadecimal digits.",
            )
        return self._within_quota(self._oci.pull(name, progress))

    def pull_as(self, login: Credentials, reference: str, progress: Progress | None = None) -> RootFilesystem:
        """An image of a registry that `login` may read, under no name. Raises what `pull` raises."""
        if Reference.parse(reference) is None:
            raise ConfigError(f"{reference!r} is no image of a registry, and credentials are for one")
        return self._within_quota(self._oci.pull_as(login, str(Reference.parse(reference)), progress))

    def remove(self, name: str) -> None:
        """Removes the image with that id, reference or name, and layers that only it has; of several names only that name.

        Raises `NotFound`, or `InvalidState` when the image is in use.
        """
        super().remove(self._oci.canonical(name) or name)
        self._oci.sweep()

    def prune(self) -> list[Image]:
        """Removes every image that nobody uses, no snapshot needs and no name means, and layers without image; returns the images."""
        removed = super().prune()
        self._oci.sweep()
        return removed

    def make_room(self, most: int) -> list[Image]:
        """Removes images that nobody uses, those first that were used longest ago, until all take at most `most` bytes; returns them.

        What was built here and has a name (`debian`) stays: nothing could bring it back.
        """
        removed = []
        for image in sorted(self.list(), key=lambda image: image.used):
            if self.disk_usage() <= most:
                break
            replaceable = not any(self._oci.canonical(name) is None for name in image.names)
            if not image.in_use and replaceable and self.remove_if_free(image.id):
                self.forget_names(image)
                self._oci.sweep()
                removed.append(image)
        return removed

    def disk_usage(self) -> int:
        """The disk space of all kept images in bytes; layers that several have count once."""
        return sum(image.size - image.shared for image in self.list()) + self._oci.bytes_of_layers()

    def close(self) -> None:
        """Gives back every image that was given out."""
        super().close()
        self._oci.layers.close()

    def _within_quota(self, root: RootFilesystem) -> RootFilesystem:
        """Makes room where the images take more than the quota; the one that was just obtained is in use and stays."""
        if self.quota is None:
            return root
        self.make_room(self.quota)
        if (used := self.disk_usage()) > self.quota:
            raise InfrastructureError(
                f"the images take {format_size(used)}, more than their quota of {format_size(self.quota)}, and all are in use or needed.",
                remedy=f"Raise {QUOTA}, or delete snapshots and end sandboxes that need images.",
            )
        return root


def _quota_of_environment() -> int | None:
    text = os.environ.get(QUOTA)
    if not text:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(str(error), key=QUOTA) from error
