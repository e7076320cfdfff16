"""How old the base images are, and renewing those that are too old: what an image was built of gets patches, the image does not."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentenv.errors import AgentEnvError
from agentenv.images import debian
from agentenv.images.names import description
from agentenv.images.oci.reference import Reference

if TYPE_CHECKING:
    from agentenv.images.kept import Progress
    from agentenv.images.store import ImageStore

DAY = 86400.0


@dataclass(frozen=True, slots=True)
class BaseImage:
    """A name with the image that it means: `obtained` when it was pulled or built here, `made` when its maker made it (unix seconds).

    `renewable`: `refresh` can bring a newer one.
    """

    name: str
    reference: str
    obtained: float
    made: float | None
    renewable: bool

    def age(self, now: float | None = None) -> float:
        """Seconds since it was obtained."""
        return max((time.time() if now is None else now) - self.obtained, 0.0)


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What became of a base image: `changed` when its name means another image now, `error` where it could not be brought."""

    image: BaseImage
    changed: bool
    error: AgentEnvError | None = None


def base_images(store: ImageStore) -> list[BaseImage]:
    """Every name with its image, the one obtained longest ago first."""
    return sorted(_base_images(store), key=lambda image: (image.obtained, image.name))


def refresh(store: ImageStore, older_than: float, progress: Progress | None = None) -> list[Refreshed]:
    """Pulls or builds anew what was obtained more than `older_than` seconds ago. One that fails does not keep the others from it.

    Sandboxes and snapshots keep the image that they were made of.
    """
    now = time.time()
    return [_renew(store, image, progress) for image in base_images(store) if image.renewable and image.age(now) >= older_than]


def _base_images(store: ImageStore) -> Iterator[BaseImage]:
    for image in store.list():
        for name in image.names:
            facts = description(store.directory, name) or {}
            if name == debian.NAME:
                built = dt.datetime.fromisoformat(str(facts.get("date"))).replace(tzinfo=dt.UTC).timestamp()
                yield BaseImage(name, image.reference, built, built, True)
                continue
            reference = Reference.parse(name)
            obtained = facts.get("pulled")
            renewable = reference is not None and reference.digest is None
            made = _made(store.facts(image.id) or {})
            yield BaseImage(name, image.reference, obtained if isinstance(obtained, float) else image.created, made, renewable)


def _made(facts: dict[str, Any]) -> float | None:
    created = (facts.get("config") or {}).get("created")
    try:
        return dt.datetime.fromisoformat(str(created)).timestamp() if created else None
    except ValueError:
        return None


def _renew(store: ImageStore, image: BaseImage, progress: Progress | None) -> Refreshed:
    try:
        root = debian.build(store, progress=progress) if image.name == debian.NAME else store.pull(image.name, progress)
    except AgentEnvError as error:
        return Refreshed(image, False, error)
    return Refreshed(image, root.image != image.reference)
