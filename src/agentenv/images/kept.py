"""The images that one AGENTENV_HOME keeps: made once, held by those who use them, and removed when nobody does.

On disk: `images/<id>/root` is the tree of an image and `images/<id>/image.json` says what it is; `images/building/<id>` is the place
(and, as a locked directory, the right) to make one; `images/seen/` remembers digests of archives, `images/names/` what names mean.
A user of an image holds a shared lock on `images/<id>`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import InfrastructureError, InvalidState, NotFound
from agentenv.images.files import allocated_bytes, remove_tree, sync_filesystem, write_durably
from agentenv.images.held import Held, claim, hold, wait_for
from agentenv.images.names import all_names, forget
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.vm.rootimage import forget_root_images

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many bytes of it are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Image:
    """A kept image: `size` in bytes on disk, `created` in seconds since the epoch, `in_use` when a sandbox or snapshot needs it."""

    id: str
    reference: str
    size: int
    created: float
    in_use: bool


class KeptImages:
    """The images under `home`. `pinned` tells which canonical references something outside needs (a snapshot, say), each with who needs it.

    One object serves one process; what it has given out stays in use until `close`. Every method may be called from any thread.
    """

    def __init__(self, home: Path, *, pinned: Callable[[], Mapping[str, str]] = dict) -> None:
        self.directory = home / "images"
        self.home = home
        self._pinned = pinned
        self._held: dict[str, Held] = {}

    def obtain(self, image_id: str, reference: str, make: Callable[[Path], None]) -> Path:
        """The tree of `image_id`, held from now on; where it does not exist, `make` fills an empty directory for it first.

        Processes that ask at the same moment make it once; a failed or interrupted `make` leaves nothing that counts.
        """
        final = self.directory / image_id
        while not self._hold(image_id):
            building = self.directory / "building" / image_id
            building.mkdir(parents=True, exist_ok=True)
            try:
                lock = wait_for(building)
            except FileNotFoundError:
                continue
            with lock:
                if not final.is_dir():
                    _make(building, final, reference, make)
                remove_tree(building)
        return final / "root"

    def held(self, image_id: str) -> Path | None:
        """The tree of `image_id`, held from now on; None when there is none."""
        return self.directory / image_id / "root" if self._hold(image_id) else None

    def remove(self, name: str) -> None:
        """Removes the image with that id, reference or name. Raises `NotFound`, or `InvalidState` when it is in use."""
        names = all_names(self.directory)
        found = next((image for image in self.list() if name in (image.id, image.reference, names.get(image.reference))), None)
        if found is None:
            known = ", ".join(image.id for image in self.list()) or "none"
            raise NotFound(f"there is no image {name!r}; there are: {known}.")
        if user := self._pinned().get(found.reference):
            raise InvalidState(f"image {found.id} is needed by {user}.", remedy="Delete that first.")
        if not self._remove(found.id):
            raise InvalidState(
                f"image {found.id} is in use by a running sandbox.", remedy="Kill the sandboxes that use it (`agentenv ls`) first."
            )
        if found.reference in names:
            forget(self.directory, names[found.reference])

    def prune(self) -> list[Image]:
        """Removes every image that nobody uses, no snapshot needs and no name means; returns those."""
        named = all_names(self.directory)
        return [image for image in self.list() if not image.in_use and image.reference not in named and self._remove(image.id)]

    def prune_skeletons(self) -> list[Image]:
        """Removes those bottom layers of `host` that nobody uses: they are made anew in no time, and outdate with the machine."""
        return [image for image in self.list() if image.reference == "host" and not image.in_use and self._remove(image.id)]

    def close(self) -> None:
        """Gives back every image that was given out."""
        while self._held:
            self._held.popitem()[1].release()

    def _hold(self, image_id: str) -> bool:
        if image_id not in self._held:
            held = hold(self.directory / image_id)
            if held is None:
                return False
            self._held[image_id] = held
        return True

    def _remove(self, image_id: str) -> bool:
        lock = claim(self.directory / image_id)
        if lock is None:
            return False
        with lock:
            remove_tree(self.directory / image_id)
            forget_root_images(image_id, ArtefactStore.open().directory / "roots")
        return True

    def list(self) -> list[Image]:
        """All kept images, the oldest first."""
        pinned = self._pinned()
        images = []
        for path in self.directory.glob("*/image.json"):
            facts = json.loads(path.read_text())
            lock = claim(path.parent)
            in_use = lock is None or facts["reference"] in pinned
            if lock is not None:
                lock.release()
            images.append(Image(path.parent.name, facts["reference"], facts["size"], facts["created"], in_use))
        return sorted(images, key=lambda image: (image.created, image.id))


def _make(building: Path, final: Path, reference: str, make: Callable[[Path], None]) -> None:
    """Fills `building` and moves it to `final` when it is complete. A tree left by a process that ended half-way is thrown away first."""
    partial = building / "partial"
    remove_tree(partial)
    partial.mkdir()
    try:
        (partial / "root").mkdir()
        (partial / "root").chmod(0o755)
        make(partial / "root")
        write_durably(partial / "image.json", {"reference": reference, "size": allocated_bytes(partial / "root"), "created": time.time()})
        if reference != "host":
            sync_filesystem(partial)
        partial.rename(final)
    except OSError as error:
        remove_tree(partial)
        where = error.filename or final.parent
        raise InfrastructureError(f"image {reference} could not be made: {error.strerror or error} ({where}).") from error
    except BaseException:
        remove_tree(partial)
        raise
