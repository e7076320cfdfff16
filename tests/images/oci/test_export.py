"""What is written is what was read; and it can be read again."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from tests.images.conftest import directory, file, hardlink, pack
from tests.images.oci.conftest import base_layer
from tests.images.oci.test_layer import described
from tests.oci import make_image, write_layout

from agentenv.images import ImageStore, freshness
from agentenv.images.oci.export import export_image
from agentenv.isolation.overlay import flatten, is_opaque, is_whiteout

UPPER = (directory("etc"), file("etc/.wh.passwd", b""), directory("bin"), file("bin/.wh..wh..opq", b""), file("bin/new", b"n" * 5000))


@pytest.fixture
def reference(tmp_path: Path) -> str:
    image = make_image(
        [base_layer(file("one", b"1"), hardlink("two", "one")), pack(*UPPER)], {"Env": ["A=1"], "Cmd": ["/bin/new"], "User": "7:8"}
    )
    return f"oci:{write_layout(tmp_path / 'layout', {'x': image})}"


def test_an_exported_image_is_the_same_image(tmp_path: Path, store: ImageStore, reference: str) -> None:
    first = store.resolve(reference)
    (kept,) = store.list()
    facts = store.facts(kept.id)
    assert facts is not None
    export_image(first, tmp_path / "out.tar", name="x:1", config=facts["config"], progress=None)
    second = ImageStore(tmp_path / "elsewhere").resolve(f"oci:{tmp_path}/out.tar")
    assert (dict(second.env), second.user, second.cwd) == (dict(first.env), "7:8", first.cwd)
    trees = []
    for number, root in enumerate((first, second)):
        trees.append(tmp_path / f"flat{number}")
        trees[-1].mkdir()
        flatten(root.trees[0].lowers, trees[-1])
    assert described(trees[0]) == described(trees[1])
    assert (trees[1] / "one").stat().st_ino == (trees[1] / "two").stat().st_ino
    layers = second.trees[0].lowers
    assert any(is_opaque(layer / "bin") and is_whiteout(layer / "etc/passwd") for layer in layers if (layer / "bin").exists())
    with tarfile.open(tmp_path / "out.tar") as archive:
        configs = [
            json.loads(archive.extractfile(member).read()) for member in archive if 0 < member.size < 2000 and "blobs" in member.name
        ]  # type: ignore[union-attr]
    assert any(document.get("config", {}).get("Cmd") == ["/bin/new"] for document in configs)


def test_a_failed_export_leaves_nothing(tmp_path: Path, store: ImageStore, reference: str) -> None:
    root = store.resolve(reference)
    (tmp_path / "out.tar").mkdir()
    with pytest.raises(OSError, match="directory"):
        export_image(root, tmp_path / "out.tar", name="x", progress=None)
    assert not list(tmp_path.glob(".out.tar*"))


def test_the_age_of_a_base_image_is_told(store: ImageStore, reference: str) -> None:
    store.resolve(reference)
    (image,) = freshness.base_images(store)
    assert image.name == reference
    assert not image.renewable
    assert image.made == 1767323045.0
    assert 0 <= image.age() < 600
    assert freshness.refresh(store, 0.0) == []
