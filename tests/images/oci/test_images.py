"""What becomes of images that are here: users they lack, names, quotas, and that nothing in use is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conditions import needs_root
from tests.images.conftest import directory, entry, file, pack
from tests.images.oci.conftest import base_layer, small_image
from tests.oci import RunningRegistry, make_image, write_layout

from agentenv.errors import InfrastructureError, InvalidState, NotFound
from agentenv.images import ImageStore
from agentenv.isolation.overlay import Merged


def merged(store: ImageStore, reference: str) -> Merged:
    return Merged(store.resolve(reference).trees[0].lowers)


@pytest.mark.parametrize(
    ("user", "passwd", "group"),
    [
        ("app", "app:x:1000:1000::/home/app:/bin/sh", "app:x:1000:"),
        ("app:staff", "app:x:1000:1000::/home/app:/bin/sh", "staff:x:1000:"),
        ("app:50", "app:x:1000:50::/home/app:/bin/sh", None),
        ("1234:99", None, None),
        ("root", None, None),
    ],
)
def test_a_user_that_the_image_lacks_is_made(tmp_path: Path, store: ImageStore, user: str, passwd: str | None, group: str | None) -> None:
    path = write_layout(tmp_path / "layout", {"x": small_image(User=user)})
    root = store.resolve(f"oci:{path}")
    assert root.user == user
    files = Merged(root.trees[0].lowers)
    lines = [(files.read(name) or b"").decode().splitlines()[1:] for name in ("etc/passwd", "etc/group")]
    assert lines == [[passwd] if passwd else [], [group] if group else []]
    assert bool(files.find("home/app")) is (passwd is not None)


def test_a_user_that_it_has_changes_nothing(tmp_path: Path, store: ImageStore) -> None:
    layer = pack(file("etc/passwd", b"root:x:0:0::/root:/bin/sh\napp:x:7:7::/srv:/bin/sh\n"), file("etc/group", b"app:x:7:\n"))
    root = store.resolve(f"oci:{write_layout(tmp_path / 'layout', {'x': small_image(layer, User='app:app')})}")
    assert len(root.trees[0].lowers) == 2


def test_places_that_are_missing_are_made_as_they_should_be(tmp_path: Path, store: ImageStore) -> None:
    layer = pack(file("program", b"", mode=0o755), directory("srv", mode=0o700))
    files = merged(store, f"oci:{write_layout(tmp_path / 'layout', {'x': make_image([layer], {'WorkingDir': '/srv/deep/down'})})}")
    modes = {name: files.find(name)[0].stat().st_mode & 0o7777 for name in ("tmp", "root", "proc", "srv", "srv/deep", "srv/deep/down")}
    assert modes == {"tmp": 0o1777, "root": 0o700, "proc": 0o555, "srv": 0o700, "srv/deep": 0o755, "srv/deep/down": 0o755}
    assert files.read("etc/passwd") == b"root:x:0:0:root:/root:/bin/sh\n"


def test_an_image_loses_one_name_before_it_is_removed(registry: RunningRegistry, store: ImageStore) -> None:
    names = [registry.push("named", tag, small_image()) for tag in ("1", "2")]
    for name in names:
        ImageStore(store.home).resolve(name)
    fresh = ImageStore(store.home)
    fresh.remove(names[0])
    assert [image.names for image in fresh.list()] == [(names[1],)]


def test_what_is_in_use_stays_and_what_is_not_goes_with_its_layers(registry: RunningRegistry, store: ImageStore, home: Path) -> None:
    shared = base_layer()
    kept, gone = (registry.push("using", tag, make_image([shared, pack(file(tag))])) for tag in ("kept", "gone"))
    store.resolve(kept)
    other = ImageStore(home)
    other.resolve(gone)
    with pytest.raises(InvalidState, match="in use"):
        store.remove(gone)
    other.close()
    store.remove(gone)
    with pytest.raises(InvalidState, match="in use"):
        ImageStore(home).remove(kept)
    assert [image.names for image in store.list()] == [(kept,)]
    assert len(list((home / "images/layers").glob("*/root"))) == 2
    assert list((home / "images").glob("downloads")) == []


def test_a_layer_that_vanished_is_fetched_again(registry: RunningRegistry, store: ImageStore, home: Path) -> None:
    reference = registry.push("vanishing", "1", small_image())
    first = ImageStore(home)
    first.resolve(reference)
    first.close()
    for layer in first._oci.layers.list():
        assert first._oci.layers.remove_if_free(layer.id)
    root = store.resolve(reference)
    assert (root.trees[0].lowers[-1] / "bin/sh").read_bytes() == b"shell"


def test_the_quota_takes_first_what_was_used_longest_ago(registry: RunningRegistry, home: Path) -> None:
    references = [registry.push("quota", str(n), make_image([base_layer(file("big", os.urandom(200_000)))])) for n in range(4)]
    used: list[str] = []
    for age, reference in enumerate(references[:3]):
        store = ImageStore(home)
        store.resolve(reference)
        store.close()
        (image,) = [image for image in store.list() if reference in image.names]
        os.utime(home / "images" / image.id / "image.json", (1000 + age, 1000 + age))
        used.append(image.id)
    holder = ImageStore(home)
    holder.resolve(references[0])
    limited = ImageStore(home, quota=800_000)
    limited.resolve(references[3])
    left = {name for image in limited.list() for name in image.names}
    assert references[0] in left, "it is in use"
    assert references[1] not in left, "it was used longest ago"
    assert {references[2], references[3]} <= left
    assert limited.disk_usage() <= 800_000
    with pytest.raises(InfrastructureError, match="more than their quota of 100 KB"):
        ImageStore(home, quota=100_000).resolve(references[3])


def test_the_quota_comes_from_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_IMAGE_QUOTA", "20GB")
    assert ImageStore(home).quota == 20_000_000_000
    monkeypatch.setenv("AGENTENV_IMAGE_QUOTA", "much")
    with pytest.raises(Exception, match="AGENTENV_IMAGE_QUOTA"):
        ImageStore(home)


def test_two_processes_pull_a_layer_once(registry: RunningRegistry, home: Path) -> None:
    reference = registry.push("together", "1", make_image([base_layer(file("big", os.urandom(500_000)))]))
    script = (
        "import sys, pathlib; from agentenv.images import ImageStore; told = []\n"
        "ImageStore(pathlib.Path(sys.argv[1])).resolve(sys.argv[2], lambda what, done, total: told.append(what))\n"
        "print(any('fetching' in what for what in told))"
    )
    command = [sys.executable, "-c", script, str(home), reference]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate()[0].strip() for process in running) == ["False", "True"]
    assert all(process.returncode == 0 for process in running)


@needs_root
def test_devices_of_an_image_are_left_out(tmp_path: Path, store: ImageStore) -> None:
    import tarfile

    layer = pack(entry("dev/sda", tarfile.BLKTYPE, devmajor=8), entry("dev/zero", tarfile.CHRTYPE, devmajor=1, devminor=5))
    files = merged(store, f"oci:{write_layout(tmp_path / 'layout', {'x': small_image(layer)})}")
    assert not files.find("dev/sda")
    assert not files.find("dev/zero")


def test_an_unknown_digest_is_not_found(store: ImageStore) -> None:
    with pytest.raises(NotFound, match="there is no image sha256:"):
        store.resolve("sha256:" + "ab" * 32)
