"""Names that mean an archive image, and the image `debian`."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from agentenv.errors import NotFound
from agentenv.images import ImageStore, names


@pytest.fixture
def kept(tmp_path: Path) -> tuple[ImageStore, str]:
    """A store with one archive image, and its reference."""
    (tmp_path / "tree/bin").mkdir(parents=True)
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        archive.add(tmp_path / "tree", ".")
    store = ImageStore(tmp_path / "home")
    return store, store.resolve(f"tar:{tmp_path / 'image.tar'}").image


def test_debian_has_to_be_built_first(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="agentenv image build debian"):
        ImageStore(tmp_path).resolve("debian")


def test_a_name_means_an_image_by_its_content(kept: tuple[ImageStore, str]) -> None:
    store, reference = kept
    names.set_name(store.directory, "debian", reference.removeprefix("sha256:"), {"date": "2026-01-01"})
    assert store.resolve("debian").image == reference
    assert names.description(store.directory, "debian") == {"date": "2026-01-01", "digest": reference.removeprefix("sha256:")}


def test_what_a_name_means_is_not_pruned_but_can_be_removed(kept: tuple[ImageStore, str]) -> None:
    store, reference = kept
    names.set_name(store.directory, "debian", reference.removeprefix("sha256:"), {})
    store.close()
    assert store.prune() == []
    store.remove("debian")
    assert store.list() == []
    assert names.all_names(store.directory) == {}
