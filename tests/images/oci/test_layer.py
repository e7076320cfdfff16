"""A layer's whiteouts become overlayfs' own, and layers show together what unpacking them one over the other makes."""

from __future__ import annotations

import gzip
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conditions import needs_root
from tests.images.conftest import directory, file, hardlink, pack, symlink
from tests.oci import digest_of

from agentenv.errors import CapabilityError
from agentenv.images.extract import Layer
from agentenv.images.oci.layer import OverlayLayer, unpack_layer
from agentenv.isolation.overlay import Merged, flatten, is_opaque, is_whiteout


def unpacked(tmp_path: Path, *members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> Path:
    target = tmp_path / "layer"
    target.mkdir()
    OverlayLayer(target).apply(BytesIO(pack(*members)))
    return target


def test_a_whiteout_hides_a_name_and_an_opaque_directory_all_below(tmp_path: Path) -> None:
    layer = unpacked(tmp_path, directory("a"), file("a/.wh.gone", b""), directory("b"), file("b/.wh..wh..opq", b""), file("b/new"))
    assert is_whiteout(layer / "a/gone")
    assert is_opaque(layer / "b")
    assert not is_opaque(layer / "a")
    assert (layer / "b/new").is_file()


@pytest.mark.parametrize("order", [1, -1])
def test_what_a_layer_hides_and_makes_anew_is_its_own_alone(tmp_path: Path, order: int) -> None:
    members = [file(".wh.d", b""), directory("d")]
    layer = unpacked(tmp_path, *members[::order], file("d/new"), file(".wh.f", b""), file("f", b"new"))
    assert is_opaque(layer / "d")
    assert (layer / "f").read_bytes() == b"new"


def test_a_file_below_a_hidden_name_makes_a_directory_of_its_own(tmp_path: Path) -> None:
    layer = unpacked(tmp_path, file(".wh.d", b""), file("d/new"))
    assert is_opaque(layer / "d")


def test_whiteouts_of_no_name_do_nothing(tmp_path: Path) -> None:
    layer = unpacked(tmp_path, file(".wh.", b""), file(".wh...", b""), file(".wh..", b""))
    assert list(layer.iterdir()) == []


@needs_root
def test_owners_times_links_and_attributes_are_kept(tmp_path: Path) -> None:
    facts = {"uid": 1234, "gid": 77, "mtime": 1_600_000_000, "mode": 0o4755, "pax_headers": {"SCHILY.xattr.user.note": "kept"}}
    layer = unpacked(tmp_path, file("program", b"#!", **facts), hardlink("second", "program"), symlink("link", "/program"))
    status = (layer / "program").stat()
    assert (status.st_uid, status.st_gid, status.st_mtime, status.st_mode & 0o7777) == (1234, 77, 1_600_000_000, 0o4755)
    assert os.getxattr(layer / "program", "user.note") == b"kept"
    assert (layer / "second").stat().st_ino == status.st_ino
    assert (layer / "link").readlink() == Path("/program")


def test_another_content_than_promised_is_refused(tmp_path: Path) -> None:
    content = pack(file("a"))
    blob = tmp_path / "blob"
    blob.write_bytes(gzip.compress(content))
    target = tmp_path / "target"
    target.mkdir()
    unpack_layer(blob, digest_of(content), target, "x")
    assert (target / "a").is_file()
    with pytest.raises(CapabilityError, match="where its configuration names"):
        unpack_layer(blob, digest_of(b"other"), _new(tmp_path / "second"), "x")


@pytest.mark.parametrize("broken", [lambda data: data[: len(data) // 2], lambda data: data[:-3] + b"xxx", lambda data: b"nothing"])
def test_a_broken_blob_is_refused(tmp_path: Path, broken: Callable[[bytes], bytes]) -> None:
    content = pack(*(file(f"f{number}", os.urandom(2000)) for number in range(8)))
    (tmp_path / "blob").write_bytes(broken(gzip.compress(content)))
    with pytest.raises(CapabilityError, match="layer"):
        unpack_layer(tmp_path / "blob", digest_of(content), _new(tmp_path / "target"), "x")


def _new(path: Path) -> Path:
    path.mkdir()
    return path


NAMES = st.sampled_from(["a", "b", "a/a", "a/b", "b/a", "a/a/a", "a/a/b"])


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """A layer as a builder writes one: what it hides first, every directory before what lies in it, no name twice."""
    members: list[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]] = []
    kinds: dict[str, str] = {}
    for name in sorted(draw(st.sets(NAMES, max_size=5))):
        parents = [name.rsplit("/", count)[0] for count in range(name.count("/"), 0, -1)]
        if any(kinds.get(parent, "dir") != "dir" for parent in parents):
            continue
        for parent in parents:
            if parent not in kinds:
                kinds[parent] = "dir"
                members.append(directory(parent))
        kinds[name] = draw(st.sampled_from(["file", "dir", "gone", "link", "opaque"]))
        folder, _, last = name.rpartition("/")
        if kinds[name] == "gone":
            members.append(file(f"{folder}/.wh.{last}".lstrip("/"), b""))
        elif kinds[name] == "file":
            members.append(file(name, draw(st.binary(max_size=3))))
        elif kinds[name] == "link":
            members.append(symlink(name, "elsewhere"))
        else:
            members.append(directory(name))
            if kinds[name] == "opaque":
                kinds[name] = "dir"
                members.append(file(f"{name}/.wh..wh..opq", b""))
    return pack(*members)


def described(tree: Path) -> dict[str, str]:
    found = {}
    for path in sorted(tree.rglob("*")):
        content = "dir" if path.is_dir() and not path.is_symlink() else path.readlink() if path.is_symlink() else path.read_bytes()
        found[str(path.relative_to(tree))] = str(content)
    return found


@given(st.lists(archives(), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_layers_show_what_unpacking_one_over_the_other_makes(layers: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        whole = _new(Path(scratch, "whole"))
        one_tree = Layer(whole)
        lowers = []
        for number, layer in enumerate(layers):
            one_tree.apply(BytesIO(layer))
            lowers.insert(0, _new(Path(scratch, f"layer{number}")))
            OverlayLayer(lowers[0]).apply(BytesIO(layer))
        flat = _new(Path(scratch, "flat"))
        flatten(lowers, flat, linked=frozenset(lowers[:1]))
        assert described(flat) == described(whole)
        merged = Merged(tuple(lowers))
        for name in ("a", "b", "a/a", "a/b", "a/a/a"):
            assert bool(merged.find(name)) == (whole / name).exists(), name


@needs_root
def test_the_kernel_sees_layers_as_we_do(tmp_path: Path) -> None:
    """A mount in a mount namespace of its own is the judge."""
    lower = tmp_path / "lower"
    lower.mkdir()
    OverlayLayer(lower).apply(BytesIO(pack(directory("a"), file("a/old"), directory("b"), file("b/old"), file("c", b"below"))))
    upper = tmp_path / "upper"
    upper.mkdir()
    members = (file("a/.wh.old", b""), file("a/new"), directory("b"), file("b/.wh..wh..opq", b""), file("b/new"), directory("c"))
    OverlayLayer(upper).apply(BytesIO(pack(*members)))
    (tmp_path / "seen").mkdir()
    script = f"mount -t overlay overlay -o lowerdir={upper}:{lower} {tmp_path}/seen && cd {tmp_path}/seen && find . | sort"
    seen = subprocess.run(["unshare", "-m", "sh", "-ec", script], capture_output=True, text=True, check=True).stdout.split()
    assert seen == [".", "./a", "./a/new", "./b", "./b/new", "./c"]
    flat = _new(tmp_path / "flat")
    flatten([upper, lower], flat)
    assert sorted(described(flat)) == [name.removeprefix("./") for name in seen[1:]]
