"""Images in files: layouts, archives of them, and what `docker save` writes."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from tests.images.conftest import file, pack
from tests.images.oci.conftest import base_layer, small_image
from tests.oci import digest_of, make_image, write_layout

from agentenv.errors import CapabilityError, NotFound
from agentenv.images import ImageStore


def archived(directory: Path, target: Path, mode: str = "w") -> Path:
    with tarfile.open(target, mode) as archive:  # type: ignore[call-overload]
        for path in sorted(directory.iterdir()):
            archive.add(path, arcname=path.name)
    return target


@pytest.mark.parametrize("mode", ["directory", "w", "w:gz"])
def test_a_layout_is_an_image(tmp_path: Path, store: ImageStore, mode: str) -> None:
    image = small_image(pack(file("second")))
    path = write_layout(tmp_path / "layout", {"one": image})
    if mode != "directory":
        path = archived(path, tmp_path / "layout.tar", mode)
    assert store.resolve(f"oci:{path}").image == image.image_id
    assert store.resolve(f"oci:{path}:one").image == image.image_id
    with pytest.raises(NotFound, match="no image of that name in it; there are: one"):
        store.resolve(f"oci:{path}:two")


def test_one_of_several_has_to_be_named(tmp_path: Path, store: ImageStore) -> None:
    images = {"one": small_image(), "two": small_image(pack(file("second")))}
    path = write_layout(tmp_path / "layout", images)
    with pytest.raises(NotFound, match="holds 2 images: one, two"):
        store.resolve(f"oci:{path}")
    assert store.resolve(f"oci:{path}:two").image == images["two"].image_id


def test_a_layout_that_changed_is_read_anew(tmp_path: Path, store: ImageStore) -> None:
    before, after = small_image(), small_image(pack(file("second")))
    path = write_layout(tmp_path / "layout", {"one": before})
    assert store.resolve(f"oci:{path}").image == before.image_id
    path.rename(tmp_path / "old")
    write_layout(path, {"one": after})
    assert store.resolve(f"oci:{path}").image == after.image_id


@pytest.mark.parametrize("linked", [False, True])
def test_what_docker_save_writes_is_an_image(tmp_path: Path, store: ImageStore, linked: bool) -> None:
    layers = [base_layer(), pack(file("second")), pack(file("second"))]
    image = make_image(layers)
    saved = tmp_path / "saved"
    for number, layer in enumerate(layers):
        (saved / f"{number}").mkdir(parents=True)
        if linked and number == 2:
            (saved / "2/layer.tar").symlink_to("../1/layer.tar")
        else:
            (saved / f"{number}/layer.tar").write_bytes(layer)
    (saved / "config.json").write_bytes(image.config)
    listed = [{"Config": "config.json", "RepoTags": ["app:1"], "Layers": [f"{number}/layer.tar" for number in range(3)]}]
    (saved / "manifest.json").write_text(json.dumps(listed))
    path = archived(saved, tmp_path / "saved.tar")
    root = store.resolve(f"oci:{path}")
    assert root.image == image.image_id
    assert len(root.trees[0].lowers) == 2, "equal layers count once"
    assert store.resolve(f"oci:{path}:app:1" if not path.exists() else f"oci:{path}").image == image.image_id


def test_what_is_no_layout_is_refused(tmp_path: Path, store: ImageStore) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CapabilityError, match="neither index"):
        store.resolve(f"oci:{tmp_path}/empty")
    (tmp_path / "text").write_text("no archive" * 200)
    with pytest.raises(CapabilityError, match="no complete tar archive"):
        store.resolve(f"oci:{tmp_path}/text")
    with pytest.raises(NotFound, match="does not exist"):
        store.resolve(f"oci:{tmp_path}/missing")


def test_a_layout_that_lacks_or_changed_a_blob_is_refused(tmp_path: Path, store: ImageStore) -> None:
    image = small_image()
    path = write_layout(tmp_path / "layout", {"one": image})
    (layer,) = [digest for digest in image.blobs if digest != image.image_id]
    blob = path / "blobs/sha256" / layer.removeprefix("sha256:")
    blob.write_bytes(make_image([pack(file("bin/sh", b"evil"))]).blobs.popitem()[1])
    with pytest.raises(CapabilityError, match="where its configuration names"):
        store.resolve(f"oci:{path}")
    blob.unlink()
    with pytest.raises(CapabilityError, match="is missing in it"):
        store.resolve(f"oci:{path}")
    (path / "blobs/sha256" / image.image_id.removeprefix("sha256:")).write_bytes(b"{}")
    with pytest.raises(CapabilityError, match="is something else"):
        store.resolve(f"oci:{path}")
    assert store.list() == []


def test_a_digest_cannot_be_a_path(tmp_path: Path, store: ImageStore) -> None:
    path = write_layout(tmp_path / "layout", {"one": small_image()})
    index = json.loads((path / "index.json").read_text())
    index["manifests"][0]["digest"] = "sha256:../../../etc/passwd"
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(CapabilityError, match="64 hexadecimal digits"):
        store.resolve(f"oci:{path}")
    assert digest_of(b"").startswith("sha256:e3b0c442")
