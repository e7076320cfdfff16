"""Tells whether an image is still the one that a snapshot was made on: layers over another base would be a mixture of two systems."""

from __future__ import annotations

import platform
from pathlib import Path

from agentenv.isolation.contract import RootFilesystem


def fingerprint(root: RootFilesystem) -> str:
    """What of the image must stay the same for snapshots on it to stay usable.

    For `host` the distribution and its release (updates within it keep the layers meaningful), for `dir:` the very directory, for an
    unpacked archive its digest.
    """
    if root.image == "host":
        release = platform.freedesktop_os_release()
        return f"host:{platform.machine()}:{release.get('ID', 'linux')}:{release.get('VERSION_ID', 'rolling')}"
    if root.image.startswith("dir:"):
        status = Path(root.image.removeprefix("dir:")).stat()
        return f"dir:{status.st_dev}:{status.st_ino}"
    return root.image
