"""Copies and comparisons of layers on the real file system."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.errors import InvalidState
from agentenv.images.files import allocated_bytes
from agentenv.node.copying import Copied, TreeCopier
from agentenv.node.sharing import layer_digest, share_unchanged


def copy(source: Path, target: Path) -> Copied:
    target.mkdir()
    return TreeCopier(lambda: False).copy(source, target)


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    """What overlayfs may leave in an upper, and more."""
    path = tmp_path / "upper"
    (path / "etc").mkdir(parents=True)
    (path / "etc/motd").write_text("hello")
    (path / "etc/motd").chmod(0o4711)
    os.link(path / "etc/motd", path / "again")
    (path / "link").symlink_to("/nowhere")
    os.mkfifo(path / "pipe")
    os.mknod(path / "whiteout", stat.S_IFCHR, 0)
    with (path / "sparse").open("wb") as sparse:
        sparse.seek(16 << 20)
        sparse.write(b"end")
        sparse.truncate(32 << 20)
    os.setxattr(path / "etc", "user.overlay.opaque", b"y")
    if os.geteuid() == 0:
        os.setxattr(path / "etc", "trusted.overlay.opaque", b"y")
        os.chown(path / "etc/motd", 1234, 5678)
        (path / "etc/motd").chmod(0o4711)
        os.chown(path / "link", 7, 8, follow_symlinks=False)
    os.utime(path / "etc/motd", (1000, 2000))
    os.utime(path / "etc", (1000, 3000))
    return path


def facts(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a copy must have in common with its source."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        kind = stat.S_IFMT(status.st_mode)
        attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)}
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else path.readlink() if stat.S_ISLNK(status.st_mode) else None
        times = status.st_mtime_ns if not stat.S_ISLNK(status.st_mode) else None
        found[str(path.relative_to(root))] = (
            kind, status.st_mode, status.st_uid, status.st_gid, status.st_rdev, status.st_nlink, attributes, content, times,
        )  # fmt: skip
    return found


def test_a_copy_is_the_same_in_everything(upper: Path, tmp_path: Path) -> None:
    copied = copy(upper, tmp_path / "copy")
    assert facts(tmp_path / "copy") == facts(upper)
    assert copied.entries == 7
    assert (tmp_path / "copy/again").samefile(tmp_path / "copy/etc/motd")
    assert not (tmp_path / "copy/again").samefile(upper / "again")
    assert (tmp_path / "copy/sparse").stat().st_blocks * 512 < 1 << 20
    assert layer_digest(tmp_path / "copy") == layer_digest(upper)


def test_a_copy_stops_when_it_is_told_to(upper: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with pytest.raises(InvalidState, match="broken off"):
        TreeCopier(lambda: True).copy(upper, tmp_path / "copy")


def test_sockets_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "upper").mkdir()
    os.mknod(tmp_path / "upper/socket", stat.S_IFSOCK | 0o600)
    assert copy(tmp_path / "upper", tmp_path / "copy").entries == 0
    assert list((tmp_path / "copy").iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "etc/motd").write_text("hellO"),
        lambda path: (path / "etc/motd").chmod(0o600),
        lambda path: os.utime(path / "etc/motd", (1, 1)),
        lambda path: (path / "etc/new").touch(),
        lambda path: (path / "whiteout").unlink(),
        lambda path: os.setxattr(path / "sparse", "user.x", b"y"),
        lambda path: ((path / "link").unlink(), (path / "link").symlink_to("/elsewhere")),
        lambda path: ((path / "again").unlink(), shutil.copy2(path / "etc/motd", path / "again")),
    ],
)
def test_every_difference_changes_the_digest(upper: Path, change: object) -> None:
    before = layer_digest(upper)
    assert callable(change)
    change(upper)
    assert layer_digest(upper) != before


def test_equal_files_are_kept_once(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    (earlier / "data").mkdir(parents=True)
    for number in range(3):
        (earlier / f"data/{number}").write_bytes(os.urandom(100_000))
    copy(earlier, tmp_path / "later")
    (tmp_path / "later/data/1").write_bytes(os.urandom(100_000))
    before = facts(tmp_path / "later")
    saved = share_unchanged(tmp_path / "later", earlier)
    assert saved >= 200_000
    after = facts(tmp_path / "later")
    links = 5
    for name, known in before.items():
        assert after[name][:links] + after[name][links + 1 :] == known[:links] + known[links + 1 :]
    assert allocated_bytes(tmp_path) < allocated_bytes(earlier) + 150_000
    shutil.rmtree(earlier)
    assert len((tmp_path / "later/data/0").read_bytes()) == 100_000


def test_a_file_of_the_same_size_and_time_but_other_content_is_not_shared(tmp_path: Path) -> None:
    for name, content in (("earlier", b"aaaa"), ("later", b"aaab")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(content)
        os.utime(tmp_path / name / "file", (1000, 1000))
    assert share_unchanged(tmp_path / "later", tmp_path / "earlier") == 0
    assert (tmp_path / "later/file").read_bytes() == b"aaab"


FILE = st.tuples(st.binary(max_size=50), st.sampled_from([0o644, 0o600]))
LAYOUT = st.dictionaries(st.sampled_from(["a", "b", "d/a", "d/b", "d/e/f"]), FILE)


@settings(max_examples=40, deadline=None)
@given(first=LAYOUT, second=LAYOUT)
def test_digests_are_equal_exactly_when_layers_are(
    first: dict[str, tuple[bytes, int]], second: dict[str, tuple[bytes, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    around = tmp_path_factory.mktemp("layers")
    for name, layout in (("first", first), ("second", second)):
        for path in (around / name, around / name / "d/e"):
            path.mkdir(parents=True)
        for file, (content, mode) in layout.items():
            (around / name / file).write_bytes(content)
            (around / name / file).chmod(mode)
        for path in (around / name).rglob("*"):
            os.utime(path, (1000, 1000))
    assert (layer_digest(around / "first") == layer_digest(around / "second")) == (first == second)
