"""Finds or makes what an image reference names, whatever its scheme."""

from __future__ import annotations

from pathlib import Path

from agentenv.errors import NotFound
from agentenv.images import archive, debian, directory, host
from agentenv.images.kept import KeptImages, Progress
from agentenv.isolation.contract import RootFilesystem

SCHEMES = (
    "`host` (this machine's programs and the running Python), `debian` (a minimal Debian with Python), "
    "`dir:PATH` (a root tree), `tar:PATH` (an archive of one), "
    "`sha256:DIGEST` (one of `agentenv image ls`)"
)


def default_image(*, disk: bool) -> str:
    """What a sandbox starts from when no image is named: `debian` where its files are a `disk` of its own, else `host`."""
    return debian.NAME if disk else host.NAME


class ImageStore(KeptImages):
    """The images of one AGENTENV_HOME, kept ones and those that are resolved anew each time."""

    def resolve(self, reference: str, progress: Progress | None = None) -> RootFilesystem:
        """The root file system that `reference` names, made first where it has to be.

        Raises `NotFound` for an unknown scheme or a missing path, `CapabilityError` for what cannot be an image, `InfrastructureError`
        when the disk is full.
        """
        scheme, _, rest = reference.partition(":")
        if reference == host.NAME:
            return host.resolve(self)
        if reference == debian.NAME:
            return debian.resolve(self)
        if scheme == "dir" and rest:
            return directory.resolve(Path(rest), self.home)
        if scheme == "tar" and rest:
            return archive.resolve(self, Path(rest), progress)
        if scheme == "sha256" and rest:
            return archive.resolve_digest(self, rest)
        raise NotFound(f"there is no image {reference!r}.", remedy=f"An image is one of {SCHEMES}.")
