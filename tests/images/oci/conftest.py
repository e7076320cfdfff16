"""A registry, an image in it, and a store to pull into."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.images.conftest import directory, file, pack
from tests.oci import MadeImage, RunningRegistry, make_image, running_registry

from agentenv.images import ImageStore

ROOT = ("bin", "dev", "etc", "proc", "root", "run", "sys", "tmp")


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    """One registry for all tests; each uses repositories of its own."""
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    (path / "images").mkdir(parents=True)
    return path


@pytest.fixture
def store(home: Path) -> Iterator[ImageStore]:
    opened = ImageStore(home)
    yield opened
    opened.close()


def base_layer(*more: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A root with a program, and `more`."""
    accounts = file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n"), file("etc/group", b"root:x:0:\n")
    return pack(*(directory(name) for name in ROOT), *accounts, file("bin/sh", b"shell", mode=0o755), *more)


def small_image(*layers: bytes, **config: object) -> MadeImage:
    """The base layer with `layers` over it."""
    return make_image([base_layer(), *layers], config)
