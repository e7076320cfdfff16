"""The images of registries, layouts and daemons among those that one AGENTENV_HOME keeps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentenv.errors import NotFound
from agentenv.images.files import remove_tree
from agentenv.images.held import claim
from agentenv.images.kept import KeptImages, Progress
from agentenv.images.layout import SYSTEM_PATH, tree_name
from agentenv.images.names import description, set_name
from agentenv.images.oci.credentials import Credentials
from agentenv.images.oci.documents import ImageConfig, RunConfig
from agentenv.images.oci.pulling import Pulled, downloading, image_id, pull, stack
from agentenv.images.oci.reference import Reference
from agentenv.isolation.contract import RootFilesystem, Tree
from agentenv.isolation.overlay import is_opaque

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentenv.images.reach import Reach

FILES = "oci"
DAEMONS = ("docker-daemon", "podman")


@dataclass(frozen=True, slots=True)
class OciImages:
    """What `ImageStore` does with such images: `kept` has the images, `layers` what they are made of."""

    kept: KeptImages
    layers: KeptImages
    reach: Reach | None = None
    """How far registries may be; None is everywhere."""

    @classmethod
    def beside(cls, kept: KeptImages, reach: Reach | None = None) -> OciImages:
        """Those among the images of `kept`."""
        return cls(kept, KeptImages(kept.home, place="images/layers"), reach)

    def canonical(self, reference: str) -> str | None:
        """How the store calls an image that `reference` means; None where it is none of these."""
        scheme, _, rest = reference.partition(":")
        if rest and scheme in (FILES, *DAEMONS):
            return reference
        parsed = Reference.parse(reference)
        return None if parsed is None else str(parsed)

    def resolve(self, name: str, progress: Progress | None) -> RootFilesystem:
        """The image of that canonical name: as it was pulled last, or pulled now; what lies in files is read anew each time."""
        known = description(self.kept.directory, name)
        if known is not None and not name.startswith(f"{FILES}:") and (root := self.of_digest(str(known["digest"]))) is not None:
            return root
        return self.pull(name, progress)

    def pull(self, name: str, progress: Progress | None) -> RootFilesystem:
        """Brings the image that the canonical `name` means at its source now, and lets the name mean it from now on."""
        pulled, root = self._obtain(name, progress, None)
        facts = {"manifest": pulled.manifest, "pulled": time.time()}
        set_name(self.kept.directory, name, pulled.digest, facts)
        return root

    def pull_as(self, login: Credentials, name: str, progress: Progress | None) -> RootFilesystem:
        """The same, asked of its registry as who `login` says. No name means it afterwards: it is not for whoever can say the name.

        The registry is asked each time, since only it knows who may read; layers that are here are not fetched again.
        """
        return self._obtain(name, progress, login)[1]

    def of_digest(self, digest: str) -> RootFilesystem | None:
        """The kept image with that id (12 digits are enough), held from now on; None where there is none, or it is not whole any more."""
        found = [path.name for path in self.kept.directory.glob(f"{image_id(digest)}*")]
        top = self.kept.held(found[0]) if len(found) == 1 else None
        facts = self.kept.facts(found[0]) if top is not None else None
        if top is None or facts is None:
            return None
        try:
            layers = stack(self.layers, tuple(facts["layers"]))
        except KeyError:
            return None
        run = config_of(facts).config or RunConfig()
        lowers = (*([top] if any(top.iterdir()) else []), *_seen(layers))
        env = dict(entry.partition("=")[::2] for entry in run.env or ())
        tree = Tree("/", tree_name("/"), lowers)
        return RootFilesystem(
            (tree,), facts["reference"], {"PATH": ":".join(SYSTEM_PATH), **env}, run.user or "root", run.working_dir or "/"
        )

    def sweep(self) -> None:
        """Removes the layers that no image has and nobody uses, and what broken pulls left."""
        needed = {diff_id.removeprefix("sha256:") for facts in self._all_facts() for diff_id in facts["layers"]}
        for layer in self.layers.list():
            if layer.id not in needed and not layer.in_use:
                self.layers.remove_if_free(layer.id)
        if (lock := claim(self.kept.directory / "downloads")) is not None:
            with lock:
                remove_tree(lock.directory)

    def bytes_of_layers(self) -> int:
        """The disk space of all layers, each counted once."""
        return sum(layer.size for layer in self.layers.list())

    def _all_facts(self) -> Iterator[dict[str, Any]]:
        for path in self.kept.directory.glob("oci-*"):
            if (facts := self.kept.facts(path.name)) is not None:
                yield facts

    def _obtain(self, name: str, progress: Progress | None, login: Credentials | None) -> tuple[Pulled, RootFilesystem]:
        with downloading(self.kept) as downloads:
            pulled = self._pull(name, downloads.directory, progress, login)
        root = self.of_digest(pulled.digest)
        if root is None:
            raise NotFound(f"{name} was removed while it was pulled.", remedy="Pull it again.")
        return pulled, root

    def _pull(self, name: str, scratch: Path, progress: Progress | None, login: Credentials | None) -> Pulled:
        scheme, _, rest = name.partition(":")
        if scheme == FILES:
            from agentenv.images.oci.layout import Layout

            with Layout.find(rest, scratch) as layout:
                return pull(self.kept, self.layers, layout, progress)
        if scheme in DAEMONS:
            from agentenv.images.oci.daemon import export

            with export(scheme, rest, scratch, progress) as layout:
                return pull(self.kept, self.layers, layout, progress)
        # httpx takes a tenth of a second to import, which only those pay who pull.
        from agentenv.images.oci.registry import EVERYWHERE, Registry

        reference = Reference.parse(name)
        assert reference is not None, f"{name} is no canonical name"
        with Registry(reference, login, self.reach or EVERYWHERE) as registry:
            return pull(self.kept, self.layers, registry, progress)


def config_of(facts: dict[str, Any]) -> ImageConfig:
    """The configuration that was written down with an image."""
    return msgspec.convert(facts["config"], ImageConfig)


def _seen(layers: tuple[Path, ...]) -> tuple[Path, ...]:
    """The layers down to the first whose root hides all below it: overlayfs itself does not look for that at a root."""
    for number, layer in enumerate(layers, 1):
        if is_opaque(layer):
            return layers[:number]
    return layers
