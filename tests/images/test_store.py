"""The store: references, one making of each image, and nothing removed that somebody uses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.images.conftest import directory, file

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState, NotFound
from agentenv.images import ImageStore
from agentenv.images.fingerprint import fingerprint
from agentenv.isolation.vm.disk import find_tool
from agentenv.isolation.vm.rootimage import root_image

Write = Callable[..., Path]

RESOLVE = """
import sys, pathlib
from agentenv.images import ImageStore
store = ImageStore(pathlib.Path(sys.argv[1]))
unpacked = []
root = store.resolve(sys.argv[2], lambda what, done, total: unpacked.append(what))
print(root.trees[0].lowers[0], any(what.startswith("unpacking") for what in unpacked), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    (path / "images").mkdir(parents=True)
    return path


@pytest.fixture
def store(home: Path) -> ImageStore:
    return ImageStore(home)


@pytest.fixture
def archive(write_archive: Write) -> Path:
    return write_archive(directory("bin"), file("bin/sh", b"shell", mode=0o755), directory("root"))


def test_an_unknown_scheme_names_those_there_are(store: ImageStore) -> None:
    for reference in ("docker:debian", "nothing", "dir:", ""):
        with pytest.raises(NotFound, match=r"host.*dir:PATH.*tar:PATH"):
            store.resolve(reference)


def test_a_directory_is_used_as_it_is(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "tree/bin").mkdir(parents=True)
    root = store.resolve(f"dir:{tmp_path}/tree")
    assert [(tree.target, tree.lowers) for tree in root.trees] == [("/", (tmp_path / "tree",))]
    assert root.cwd == "/"
    assert store.list() == []


@pytest.mark.parametrize(("name", "message"), [("missing", "does not exist"), ("a-file", "no directory"), ("empty", "none of bin")])
def test_what_is_no_root_tree_is_refused(store: ImageStore, tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "a-file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises((NotFound, CapabilityError), match=message):
        store.resolve(f"dir:{tmp_path}/{name}")


def test_a_tree_that_contains_the_home_is_refused(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    with pytest.raises(CapabilityError, match="contains AGENTENV_HOME"):
        store.resolve(f"dir:{tmp_path}")


def test_an_archive_is_unpacked_once_and_kept_by_its_content(store: ImageStore, home: Path, archive: Path, tmp_path: Path) -> None:
    first = store.resolve(f"tar:{archive}")
    again = tmp_path / "copy.tar"
    again.write_bytes(archive.read_bytes())
    told: list[str] = []
    second = ImageStore(home).resolve(f"tar:{again}", lambda what, done, total: told.append(what))
    assert first.trees == second.trees
    assert first.image == second.image == store.resolve(first.image).image
    assert not any(what.startswith("unpacking") for what in told)
    assert (first.trees[0].lowers[0] / "bin/sh").read_bytes() == b"shell"
    assert [image.reference for image in store.list()] == [first.image]


def test_an_archive_that_changed_is_another_image(store: ImageStore, archive: Path, write_archive: Write) -> None:
    before = store.resolve(f"tar:{archive}")
    write_archive(directory("bin"), file("bin/sh", b"other"))
    after = store.resolve(f"tar:{archive}")
    assert (after.trees[0].lowers[0] / "bin/sh").read_bytes() == b"other"
    assert (before.trees[0].lowers[0] / "bin/sh").read_bytes() == b"shell"


def test_a_digest_is_read_once_while_the_file_stays_the_same(home: Path, archive: Path) -> None:
    ImageStore(home).resolve(f"tar:{archive}")
    told: list[str] = []
    ImageStore(home).resolve(f"tar:{archive}", lambda what, done, total: told.append(what))
    assert told == []


def test_a_broken_archive_leaves_nothing(store: ImageStore, home: Path, write_archive: Write) -> None:
    archive = write_archive(directory("bin"), *(file(f"bin/{number}", os.urandom(5000)) for number in range(10)))
    archive.write_bytes(archive.read_bytes()[:20_000])
    with pytest.raises(CapabilityError):
        store.resolve(f"tar:{archive}")
    assert store.list() == []
    assert list((home / "images").rglob("bin")) == []


def test_an_archive_of_no_root_tree_leaves_nothing(store: ImageStore, home: Path, write_archive: Write) -> None:
    with pytest.raises(CapabilityError, match="no root file system"):
        store.resolve(f"tar:{write_archive(file('readme', b'hello'))}")
    assert store.list() == []


def test_a_full_disk_is_named_and_leaves_nothing(store: ImageStore, home: Path) -> None:
    def make(target: Path) -> None:
        (target / "half").touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target / "other"))

    with pytest.raises(InfrastructureError, match="No space left"):
        store.obtain("tar-x", "sha256:x", make)
    assert list(home.rglob("half")) == []
    assert store.obtain("tar-x", "sha256:x", lambda target: (target / "whole").touch()).joinpath("whole").exists()


def test_what_a_killed_maker_left_is_thrown_away(store: ImageStore, home: Path) -> None:
    (home / "images/building/tar-x/partial/root").mkdir(parents=True)
    (home / "images/building/tar-x/partial/root/half").touch()
    root = store.obtain("tar-x", "sha256:x", lambda target: (target / "whole").touch())
    assert [path.name for path in root.iterdir()] == ["whole"]
    assert list((home / "images/building").iterdir()) == []


def test_two_processes_unpack_once(home: Path, archive: Path) -> None:
    command = [sys.executable, "-c", RESOLVE, str(home), f"tar:{archive}"]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [process.communicate()[0].split() for process in processes]
    assert len({tree for tree, _ in answers}) == 1
    assert sorted(unpacked for _, unpacked in answers) == ["False", "False", "True"]


def test_what_a_process_uses_is_not_removed_until_it_ends(store: ImageStore, home: Path, archive: Path) -> None:
    command = [sys.executable, "-c", RESOLVE, str(home), f"tar:{archive}"]
    user = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert user.stdout is not None
    user.stdout.readline()
    (image,) = store.list()
    assert image.in_use
    assert store.prune() == []
    with pytest.raises(InvalidState, match="in use"):
        store.remove(image.id)
    user.kill()
    user.communicate()
    store.remove(image.reference)
    assert store.list() == []


def test_what_a_snapshot_needs_is_not_removed(home: Path, archive: Path) -> None:
    first = ImageStore(home)
    reference = first.resolve(f"tar:{archive}").image
    first.close()
    pinning = ImageStore(home, pinned=lambda: {reference: "snapshot best"})
    assert pinning.prune() == []
    with pytest.raises(InvalidState, match="needed by snapshot best"):
        pinning.remove(reference)
    assert [image.reference for image in ImageStore(home).prune()] == [reference]


def test_removing_what_there_is_not(store: ImageStore) -> None:
    with pytest.raises(NotFound, match="no image 'sha256:abc'"):
        store.remove("sha256:abc")
    with pytest.raises(NotFound, match="no image sha256:0123"):
        store.resolve("sha256:" + "0123456789abcdef")


def test_the_host_is_made_once_and_outdated_ones_are_collected(store: ImageStore, home: Path) -> None:
    outdated = ImageStore(home)
    outdated.obtain("host-0000", "host", lambda target: None)
    outdated.close()
    root = store.resolve("host")
    assert root.trees[0].target == "/"
    assert root.env["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert [image.id for image in store.list()] == [root.trees[0].lowers[0].parent.name]
    assert ImageStore(home).resolve("host").trees == root.trees


def test_a_home_inside_of_what_the_host_shows_is_refused() -> None:
    inside = ImageStore(Path(sys.prefix) / "agentenv-home")
    with pytest.raises(CapabilityError, match="AGENTENV_HOME"):
        inside.resolve("host")


def test_fingerprints_follow_the_image(store: ImageStore, archive: Path, tmp_path: Path) -> None:
    unpacked = store.resolve(f"tar:{archive}")
    assert fingerprint(unpacked) == unpacked.image
    (tmp_path / "tree/bin").mkdir(parents=True)
    tree = store.resolve(f"dir:{tmp_path}/tree")
    before = fingerprint(tree)
    (tmp_path / "tree").rename(tmp_path / "old")
    (tmp_path / "tree/bin").mkdir(parents=True)
    assert fingerprint(tree) != before
    assert fingerprint(store.resolve("host")).startswith("host:")


def test_the_root_image_of_virtual_machines_goes_with_the_image(
    store: ImageStore, home: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_tool("mkfs.erofs") is None and find_tool("mksquashfs") is None:
        pytest.skip("no program makes root images here")
    monkeypatch.setenv("AGENTENV_ARTEFACTS", str(home / "artefacts"))
    made = root_image(store.resolve(f"tar:{archive}"), home / "artefacts" / "roots").path
    assert ImageStore(home).prune() == []
    assert made.exists()
    store.close()
    assert len(ImageStore(home).prune()) == 1
    assert not made.exists()
