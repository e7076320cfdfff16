"""The images that one AGENTENV_HOME keeps: made once, held by those who use them, and removed when nobody does.

On disk: `images/<id>/root` is the tree of an image and `images/<id>/image.json` says what it is; `images/building/<id>` is the place
(and, as a locked directory, the right) to make one; `images/seen/` remembers digests of archives, `images/names/` what names mean.
A user of an image holds a shared lock on `images/<id>`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.errors import InfrastructureError, InvalidState, NotFound
from agentenv.images.files import allocated_bytes, remove_tree, sync_filesystem, write_durably
from agentenv.images.held import Held, claim, hold, wait_for
from agentenv.images.names import all_names, forget
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.vm.rootimage import forget_root_images
from agentenv.monitoring.files import read_json

RECORD = "image.json"

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many bytes of it are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Image:
    """A kept image: `size` in bytes on disk, `created` and `used` in seconds since the epoch, `in_use` when a sandbox or snapshot needs it.

    `names` are those that mean it now. `shared` bytes of the size are layers that other images may have too.
    """

    id: str
    reference: str
    size: int
    created: float
    in_use: bool
    used: float = 0.0
    names: tuple[str, ...] = ()
    shared: int = 0


class KeptImages:
    """The images under `home`. `pinned` tells which canonical references something outside needs (a snapshot, say), each with who needs it.

    One object serves one process; what it has given out stays in use until `close`. Every method may be called from any thread.
    """

    def __init__(self, home: Path, *, pinned: Callable[[], Mapping[str, str]] = dict, place: str = "images") -> None:
        self.directory = home / place
        self.home = home
        self._pinned = pinned
        self._held: dict[str, Held] = {}
        self._holding = threading.Lock()

    def obtain(self, image_id: str, reference: str, make: Callable[[Path], None], facts: Mapping[str, object] | None = None) -> Path:
        """The tree of `image_id`, held from now on; where it does not exist, `make` fills an empty directory for it first.

        Processes that ask at the same moment make it once; a failed or interrupted `make` leaves nothing that counts. `facts` are written
        down beside the tree; `shared` among them counts bytes that the image takes elsewhere.
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
                    _make(building, final, reference, make, facts or {})
                remove_tree(building)
        return final / "root"

    def held(self, image_id: str) -> Path | None:
        """The tree of `image_id`, held from now on; None when there is none."""
        return self.directory / image_id / "root" if self._hold(image_id) else None

    def remove(self, name: str) -> None:
        """Removes the image with that id, reference or name; of several names only that name.

        Raises `NotFound`, or `InvalidState` when the image is in use.
        """
        found = next((image for image in self.list() if name in (image.id, image.reference, *image.names)), None)
        if found is not None and name in found.names and len(found.names) > 1:
            forget(self.directory, name)
            return
        if found is None:
            known = ", ".join(image.id for image in self.list()) or "none"
            raise NotFound(f"there is no image {name!r}; there are: {known}.")
        if user := self._pinned().get(found.reference):
            raise InvalidState(f"image {found.id} is needed by {user}.", remedy="Delete that first.")
        if not self.remove_if_free(found.id):
            raise InvalidState(
                f"image {found.id} is in use by a running sandbox.", remedy="Kill the sandboxes that use it (`agentenv ls`) first."
            )
        self.forget_names(found)

    def prune(self) -> list[Image]:
        """Removes every image that nobody uses, no snapshot needs and no name means; returns those."""
        return [image for image in self.list() if not image.in_use and not image.names and self.remove_if_free(image.id)]

    def prune_skeletons(self) -> list[Image]:
        """Removes those bottom layers of `host` that nobody uses: they are made anew in no time, and outdate with the machine."""
        return [image for image in self.list() if image.reference == "host" and not image.in_use and self.remove_if_free(image.id)]

    def close(self) -> None:
        """Gives back every image that was given out."""
        while self._held:
            self._held.popitem()[1].release()

    def forget_names(self, image: Image) -> None:
        """No name means that image any more."""
        for name in image.names:
            forget(self.directory, name)

    def facts(self, image_id: str) -> dict[str, Any] | None:
        """What was written down beside the tree of an image; None where there is no such image."""
        return read_json(self.directory / image_id / RECORD)

    def _hold(self, image_id: str) -> bool:
        with self._holding:
            if image_id not in self._held:
                held = hold(self.directory / image_id)
                if held is None:
                    return False
                self._held[image_id] = held
                # When it was used last, for those who make room.
                os.utime(self.directory / image_id / RECORD)
            return True

    def remove_if_free(self, image_id: str) -> bool:
        """Removes what is kept under that id unless somebody uses it; returns whether it did."""
        lock = claim(self.directory / image_id)
        if lock is None:
            return False
        with lock:
            remove_tree(self.directory / image_id)
            forget_root_images(self.directory / image_id / "root", ArtefactStore.open().directory / "roots")
        return True

    def list(self) -> list[Image]:
        """All kept images, the oldest first."""
        pinned, names = self._pinned(), all_names(self.directory)
        images = []
        for path in self.directory.glob(f"*/{RECORD}"):
            if (facts := read_json(path)) is None:
                continue  # removed meanwhile
            lock = claim(path.parent)
            reference = facts["reference"]
            in_use = lock is None or reference in pinned
            if lock is not None:
                lock.release()
            used = path.stat().st_mtime if path.exists() else facts["created"]
            meant, shared = names.get(reference, ()), facts.get("shared", 0)
            images.append(Image(path.parent.name, reference, facts["size"], facts["created"], in_use, used, meant, shared))
        return sorted(images, key=lambda image: (image.created, image.id))


def _make(building: Path, final: Path, reference: str, make: Callable[[Path], None], facts: Mapping[str, object]) -> None:
    """Fills `building` and moves it to `final` when it is complete. A tree left by a process that ended half-way is thrown away first."""
    partial = building / "partial"
    remove_tree(partial)
    partial.mkdir()
    try:
        (partial / "root").mkdir()
        (partial / "root").chmod(0o755)
        make(partial / "root")
        shared = facts.get("shared", 0)
        size = allocated_bytes(partial / "root") + (shared if isinstance(shared, int) else 0)
        write_durably(partial / RECORD, {**facts, "reference": reference, "size": size, "created": time.time()})
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
