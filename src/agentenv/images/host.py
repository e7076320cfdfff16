"""The image `host`: this machine's own programs and the running Python over a synthesized root, and nothing else of the machine."""

from __future__ import annotations

import os
from pathlib import Path

from agentenv.errors import CapabilityError
from agentenv.images import skeleton
from agentenv.images.kept import KeptImages
from agentenv.images.layout import HostLayout, PythonHome, host_layout
from agentenv.isolation.contract import RootFilesystem

NAME = "host"


def resolve(images: KeptImages) -> RootFilesystem:
    """The host as an image, for the Python that runs now; raises `CapabilityError` when AGENTENV_HOME lies inside of what it shows."""
    layout = host_layout(PythonHome.running(), homes=private_homes())
    refuse_home_inside(layout, images.directory)
    image_id = f"host-{skeleton.digest(layout)}"
    root = images.held(image_id)
    if root is None:
        root = images.obtain(image_id, NAME, lambda target: skeleton.build(layout, target))
        images.prune_skeletons()
    # UTF-8 by LC_CTYPE alone: LANG would mean the same, but has every program load a dozen locale files (1 ms for a shell).
    env = {"PATH": ":".join(layout.path), "LC_CTYPE": "C.UTF-8"}
    if layout.import_path:
        env["PYTHONPATH"] = ":".join(layout.import_path)
    return RootFilesystem(layout.overlays(root), NAME, env)


def private_homes() -> tuple[Path, ...]:
    """Directories of people, which no image ever shows as a whole."""
    home = os.environ.get("HOME")
    return (Path("/root"), Path("/home"), *([Path(home).resolve()] if home else []))


def refuse_home_inside(layout: HostLayout, images: Path) -> None:
    """A tree that is shown read-only must not contain what sandboxes write."""
    for lower in layout.trees.values():
        if images.resolve().is_relative_to(lower.resolve()):
            raise CapabilityError(
                f"AGENTENV_HOME ({images.parent}) lies inside of {lower}, which the image `host` shows to sandboxes.",
                remedy="Set AGENTENV_HOME to a directory outside of the Python installation.",
            )
