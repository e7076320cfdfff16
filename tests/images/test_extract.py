"""Unpacking: what is kept, what is refused, and that nothing outside of the target is ever touched."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.images.conftest import directory, entry, file, hardlink, pack, symlink

from agentenv.errors import CapabilityError
from agentenv.images.extract import Layer, extract_archive

Write = Callable[..., Path]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.mkdir()
    return path


def apply(target: Path, *layers: bytes) -> None:
    layer = Layer(target)
    for content in layers:
        layer.apply(io.BytesIO(content))


def names(target: Path) -> set[str]:
    return {str(path.relative_to(target)) for path in target.rglob("*")}


def test_keeps_modes_times_links_and_content(target: Path) -> None:
    apply(
        target,
        pack(
            directory("bin", mode=0o750, mtime=1000),
            file("bin/tool", b"#!/bin/sh\n", mode=0o4755, mtime=2000),
            symlink("bin/sh", "/bin/tool"),
            hardlink("bin/same", "bin/tool"),
            entry("pipe", tarfile.FIFOTYPE),
        ),
    )
    tool = (target / "bin/tool").stat()
    assert (tool.st_mode & 0o777, tool.st_mtime, tool.st_nlink) == (0o755, 2000, 2)
    assert ((target / "bin").stat().st_mode & 0o777, (target / "bin").stat().st_mtime) == (0o750, 1000)
    assert (target / "bin/sh").readlink() == Path("/bin/tool")
    assert stat.S_ISFIFO((target / "pipe").stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_as_root_keeps_owners_setuid_and_capabilities(target: Path) -> None:
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    headers = {"SCHILY.xattr.security.capability": capability.decode("utf-8", "surrogateescape"), "SCHILY.xattr.user.note": "kept"}
    apply(target, pack(file("tool", uid=1234, gid=5678, mode=0o4755, pax_headers=headers)))
    status = (target / "tool").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1234, 5678, 0o4755)
    assert os.getxattr(target / "tool", "security.capability") == capability
    assert os.getxattr(target / "tool", "user.note") == b"kept"


def test_never_sets_attributes_that_steer_overlayfs(target: Path) -> None:
    headers = {"SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.user.overlay.redirect": "/etc"}
    apply(target, pack(directory("trap", pax_headers=headers)))
    assert os.listxattr(target / "trap") == []


@pytest.mark.parametrize("name", ["../escape", "a/../../escape", "a/.."])
def test_refuses_names_that_climb(target: Path, name: str) -> None:
    with pytest.raises(CapabilityError, match="outside of the archive"):
        apply(target, pack(file(name)))
    assert not (target.parent / "escape").exists()


def test_reads_an_absolute_name_as_one_under_the_root(target: Path) -> None:
    apply(target, pack(file("/etc/motd", b"hello")))
    assert (target / "etc/motd").read_bytes() == b"hello"


@pytest.mark.parametrize("link", ["/", "..", "../..", "/tmp/../.."])
def test_links_lead_only_within_the_tree(target: Path, link: str) -> None:
    """A member below a symbolic link lands where the link leads when the tree is the root, as it would for the image's own programs."""
    apply(target, pack(directory("a"), symlink("a/out", link), file("a/out/planted", b"inside")))
    assert not (target.parent / "planted").exists()
    assert not Path("/planted").exists()
    assert (target / "planted").read_bytes() == b"inside"


def test_follows_links_of_merged_systems(target: Path) -> None:
    apply(target, pack(directory("usr/bin"), symlink("bin", "usr/bin"), file("bin/tool", b"t")))
    assert (target / "usr/bin/tool").read_bytes() == b"t"
    assert (target / "bin").is_symlink()


def test_refuses_a_circle_of_links(target: Path) -> None:
    with pytest.raises(CapabilityError, match="too many symbolic links"):
        apply(target, pack(symlink("a", "b"), symlink("b", "a"), file("a/x")))


@pytest.mark.parametrize("source", ["/etc/passwd", "missing", "../../etc/passwd", "folder"])
def test_refuses_hard_links_to_anything_but_files_before(target: Path, source: str) -> None:
    with pytest.raises(CapabilityError):
        apply(target, pack(directory("folder"), hardlink("thief", source)))
    assert not (target / "thief").exists()


def test_a_hard_link_through_a_link_stays_inside(target: Path) -> None:
    with pytest.raises(CapabilityError, match="no file in the archive"):
        apply(target, pack(symlink("a", "/etc"), hardlink("thief", "a/passwd")))


def test_replacing_a_link_by_a_file_leaves_what_it_led_to(target: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    apply(target, pack(symlink("file", str(outside)), file("file", b"new")))
    assert outside.read_text() == "precious"
    assert (target / "file").read_bytes() == b"new"


def test_leaves_device_nodes_out(target: Path) -> None:
    apply(target, pack(entry("disk", tarfile.BLKTYPE, devmajor=8, devminor=0), entry("null", tarfile.CHRTYPE), file("real")))
    assert names(target) == {"real"}


def test_whiteouts_hide_what_earlier_layers_made_and_nothing_else(target: Path) -> None:
    below = pack(file("etc/old"), file("etc/kept"), file("data/a"), file("data/b"))
    above = pack(file("data/new"), file("data/.wh..wh..opq", b""), file("etc/.wh.old", b""), file("etc/.wh.missing", b""))
    apply(target, below, above)
    assert names(target) == {"etc", "etc/kept", "data", "data/new"}


@pytest.mark.parametrize("name", [".wh.", ".wh...", ".wh.."])
def test_a_whiteout_without_a_name_removes_nothing(target: Path, name: str) -> None:
    apply(target, pack(file("dir/kept")), pack(file(f"dir/{name}", b"")))
    assert names(target) == {"dir", "dir/kept"}


def test_later_layers_replace_directories_by_files_and_back(target: Path) -> None:
    apply(target, pack(file("x/inner"), file("y")), pack(file("x", b"now a file"), directory("y"), file("y/inner", b"below")))
    assert (target / "x").read_bytes() == b"now a file"
    assert (target / "y/inner").read_bytes() == b"below"


def test_keeps_holes(target: Path) -> None:
    apply(target, pack(file("sparse", bytes(8 << 20) + b"end")))
    status = (target / "sparse").stat()
    assert status.st_size == (8 << 20) + 3
    assert status.st_blocks * 512 < 1 << 20


def test_reads_sparse_members_of_gnu_tar(target: Path, tmp_path: Path) -> None:
    with (tmp_path / "holes").open("wb") as holes:
        holes.seek(4 << 20)
        holes.write(b"data")
        holes.truncate(6 << 20)
    subprocess.run(["tar", "-C", str(tmp_path), "--sparse", "-cf", str(tmp_path / "sparse.tar"), "holes"], check=True)
    extract_archive(tmp_path / "sparse.tar", target)
    assert (target / "holes").read_bytes() == (tmp_path / "holes").read_bytes()


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_reads_every_compression_whatever_the_name(write_archive: Write, target: Path, mode: str) -> None:
    extract_archive(write_archive(file("bin/tool", b"content" * 1000), name="image.anything", mode=mode), target)
    assert (target / "bin/tool").read_bytes() == b"content" * 1000


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
@pytest.mark.parametrize("kept", [0.02, 0.3, 0.5, 0.8, 0.97])
def test_refuses_archives_that_are_cut_off(write_archive: Write, target: Path, mode: str, kept: float) -> None:
    path = write_archive(*(file(f"f{number}", os.urandom(5000)) for number in range(20)), mode=mode)
    content = path.read_bytes().rstrip(b"\0") if mode == "w" else path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(CapabilityError, match=r"no complete tar archive|is broken"):
        extract_archive(path, target)


def test_refuses_an_archive_cut_off_between_two_members(write_archive: Write, target: Path) -> None:
    path = write_archive(file("a", bytes(512)), file("b", b"y"))
    path.write_bytes(path.read_bytes()[:1024])
    with pytest.raises(CapabilityError, match="its end is missing"):
        extract_archive(path, target)


def test_refuses_what_is_no_archive(tmp_path: Path, target: Path) -> None:
    (tmp_path / "text").write_text("no archive at all" * 1000)
    with pytest.raises(CapabilityError, match="no complete tar archive"):
        extract_archive(tmp_path / "text", target)


def test_says_what_to_do_with_the_output_of_docker_save(write_archive: Write, target: Path) -> None:
    path = write_archive(file("manifest.json", b"[]"), file("oci-layout", b"{}"), file("blobs/sha256/aa"))
    with pytest.raises(CapabilityError, match="docker export"):
        extract_archive(path, target)


def test_tells_progress_up_to_the_end(write_archive: Write, target: Path) -> None:
    path = write_archive(*(file(f"f{number}", os.urandom(100_000)) for number in range(30)))
    told: list[tuple[str, int, int]] = []
    extract_archive(path, target, lambda *progress: told.append(progress))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[-1][1:] == (path.stat().st_size, path.stat().st_size)


COMPONENT = st.sampled_from(["a", "b", "c", "..", ".", "", ".wh.a", ".wh..wh..opq", "etc"])
NAME = st.lists(COMPONENT, min_size=1, max_size=4).map("/".join)
KIND = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
HOSTILE = st.lists(st.tuples(NAME, KIND, st.one_of(NAME, NAME.map("/".__add__))), max_size=12)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members=HOSTILE)
def test_nothing_outside_is_ever_touched(members: list[tuple[str, bytes, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    around = tmp_path_factory.mktemp("around")
    (around / "a").write_text("precious")
    (around / "etc").mkdir()
    before = {path: path.lstat().st_mtime_ns for path in (around, around / "a", around / "etc")}
    target = around / "target"
    target.mkdir()
    before[around] = around.lstat().st_mtime_ns
    archive = pack(*(entry(name, kind, linkname=link) for name, kind, link in members if name.strip("/")))
    with contextlib.suppress(CapabilityError, tarfile.TarError):
        apply(target, archive, archive)
    assert {path: path.lstat().st_mtime_ns for path in before} == before
    assert (around / "a").stat().st_nlink == 1


PLAIN = st.text("abc.é ", min_size=1, max_size=5).filter(lambda part: part.strip(".") != "")
TREE = st.dictionaries(st.lists(PLAIN, min_size=1, max_size=3).map("/".join), st.binary(max_size=2000), max_size=8)


@settings(max_examples=60, deadline=None)
@given(tree=TREE)
def test_round_trip(tree: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    paths = {name: content for name, content in tree.items() if not any(other.startswith(f"{name}/") for other in tree)}
    target = tmp_path_factory.mktemp("target")
    apply(target, pack(*(file(name, content) for name, content in paths.items())))
    assert {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()} == paths


def test_refuses_a_broken_header_in_the_middle(write_archive: Write, target: Path) -> None:
    path = write_archive(file("a", b"x"), file("b", b"y"), file("c", b"z"))
    content = bytearray(path.read_bytes())
    content[1024:1100] = b"\xff" * 76
    path.write_bytes(content)
    with pytest.raises(CapabilityError, match="end is missing"):
        extract_archive(path, target)


def test_a_directory_that_became_a_link_is_left_alone(target: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    os.utime(outside / "sub", (1000, 1000))
    apply(target, pack(directory("a/sub", mtime=5000), symlink("a", str(outside)), file("b")))
    assert (outside / "sub").stat().st_mtime == 1000


@pytest.mark.parametrize("facts", [{"mtime": 1 << 70}, {"pax_headers": {"path": "a\0b"}}, {"uid": 1 << 70}])
def test_refuses_numbers_and_names_that_no_system_call_takes(write_archive: Write, target: Path, facts: dict[str, object]) -> None:
    if "uid" in facts and os.geteuid() != 0:
        pytest.skip("only root sets owners")
    with pytest.raises(CapabilityError, match="no complete tar archive"):
        extract_archive(write_archive(file("a", **facts)), target)


def test_no_more_is_unpacked_than_is_allowed(write_archive: Write, target: Path) -> None:
    path = write_archive(file("much", bytes(3 << 20)), mode="w:gz")
    assert path.stat().st_size < 1 << 20
    with pytest.raises(CapabilityError, match="more than the 1048576 bytes"):
        extract_archive(path, target, limit=1 << 20)
