"""Trees become disks."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from agentenv.errors import CapabilityError, InfrastructureError
from agentenv.isolation.contract import RootFilesystem, Tree
from agentenv.isolation.overlay import make_whiteout
from agentenv.isolation.vm import clone_disk, root_image
from agentenv.isolation.vm.disk import empty_disk, find_tool

needs_erofs = pytest.mark.skipif(find_tool("mkfs.erofs") is None and find_tool("mksquashfs") is None, reason="no erofs-utils")
EROFS, SQUASHFS = b"\xe2\xe1\xf5\xe0", b"hsqs"


def plain(*lowers: Path) -> RootFilesystem:
    return RootFilesystem((Tree("/", "@", lowers),), "test")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree/bin").mkdir(parents=True)
    (tmp_path / "tree/bin/sh").write_text("#!")
    return tmp_path / "tree"


@needs_erofs
def test_an_image_is_made_once_and_anew_when_a_file_changes(tree: Path, tmp_path: Path) -> None:
    first = root_image(plain(tree), tmp_path / "roots")
    data = first.path.read_bytes()
    assert EROFS in data[1024:1028] or data.startswith(SQUASHFS)
    made = first.path.stat().st_ino
    assert root_image(plain(tree), tmp_path / "roots").path.stat().st_ino == made
    (tree / "bin/sh").write_text("#!/")
    second = root_image(plain(tree), tmp_path / "roots")
    assert second.path != first.path
    assert {path.name for path in (tmp_path / "roots").iterdir()} == {first.path.name, second.path.name}


@needs_erofs
def test_the_identity_of_a_sandbox_is_no_part_of_its_image(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "identity").mkdir()
    alone = root_image(plain(tree), tmp_path / "roots")
    assert root_image(plain(tmp_path / "identity", tree), tmp_path / "roots") == alone


def test_the_machines_own_directories_are_refused(tree: Path, tmp_path: Path) -> None:
    host = RootFilesystem((Tree("/", "@", (tree,)), Tree("/usr", "usr", (Path("/usr"),))), "host")
    with pytest.raises(CapabilityError, match=r"'host' cannot be started in a virtual machine.*debian"):
        root_image(host, tmp_path / "roots")


@pytest.mark.skipif(find_tool("mkfs.erofs") is None, reason="no erofs-utils")
def test_layers_become_one_image(tree: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layers/one/@"
    (layer / "bin").mkdir(parents=True)
    (layer / "bin/new").write_text("new")
    make_whiteout(layer / "bin/sh")
    image = root_image(plain(layer, tree), tmp_path / "roots").path
    assert image.suffix == ".erofs"
    listed = subprocess.run(["dump.erofs", "--path=/bin", "--ls", str(image)], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"\b(new|sh)\b", listed) == ["new"]
    assert (tree / "bin/sh").stat().st_nlink == 1, "what may change is copied"
    assert [path.name for path in (tmp_path / "roots").iterdir()] == [image.name]
    assert root_image(plain(layer, tree), tmp_path / "roots").path == image
    (tree / "bin/other").write_text("other")
    assert root_image(plain(layer, tree), tmp_path / "roots").path != image


@needs_erofs
def test_a_broken_attempt_leaves_nothing(tree: Path, tmp_path: Path) -> None:
    gone = plain(tree / "bin")
    (tree / "bin/sh").unlink()
    (tree / "bin").rmdir()
    with pytest.raises((InfrastructureError, FileNotFoundError)):
        root_image(gone, tmp_path / "roots")
    assert not list((tmp_path / "roots").glob("*")) if (tmp_path / "roots").exists() else True


def test_a_copy_of_a_disk_has_its_holes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(64 << 20)
        for offset in (0, 10 << 20, (64 << 20) - 7):
            file.seek(offset)
            file.write(b"content")
    clone_disk(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert (tmp_path / "copy").stat().st_blocks * 512 < 1 << 20


def test_an_empty_copy(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(1 << 20)
    clone_disk(source, tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_size == 1 << 20


@pytest.mark.skipif(find_tool("mkfs.ext4") is None, reason="no e2fsprogs")
def test_an_empty_disk_takes_little_and_is_made_once(tmp_path: Path) -> None:
    disk = empty_disk(1 << 30, tmp_path)
    status = disk.stat()
    assert status.st_size == 1 << 30
    assert status.st_blocks * 512 < 8 << 20
    assert empty_disk(1 << 30, tmp_path).stat().st_ino == status.st_ino
    descriptor = os.open(disk, os.O_RDONLY)
    try:
        assert os.pread(descriptor, 2, 1024 + 56) == b"\x53\xef"
    finally:
        os.close(descriptor)
