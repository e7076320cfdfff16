"""Which files COPY means."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from agentenv.errors import ConfigError
from agentenv.templates.dockerfile import Ignored
from agentenv.templates.selection import fixed_prefix, select


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a.py", "b.py", "dir/x", "dir/sub/y", "dir/left.log"):
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "outside").write_text("outside")
    return tmp_path / "root"


def names(root: Path, *sources: str, ignored: str = "") -> list[str]:
    return sorted(entry.name for entry in select(root, sources, Ignored.parse(ignored)).entries)


def test_of_a_directory_its_content_and_of_a_file_itself(root: Path) -> None:
    assert names(root, "dir") == ["left.log", "sub", "sub/y", "x"]
    assert names(root, "dir/x", "a.py") == ["a.py", "x"]
    assert names(root, ".", ignored="dir") == ["a.py", "b.py"]
    assert names(root, "*.py") == names(root, "[ab].py") == names(root, "?.py") == ["a.py", "b.py"]
    assert names(root, "d*/s?b") == ["y"]
    assert names(root, "../../a.py") == ["a.py"], "nothing lies above the build's directory"


def test_what_is_left_out(root: Path) -> None:
    assert names(root, "dir", ignored="**/*.log\n") == ["sub", "sub/y", "x"]
    assert names(root, "dir", ignored="dir/*\n!dir/sub/y\n") == ["sub/y"]
    with pytest.raises(ConfigError, match=r"left out by \.dockerignore"):
        select(root, ["dir/left.log"], Ignored.parse("**/*.log"))


@pytest.mark.parametrize("source", ["missing", "dir/missing", "*.c", "a.py/x"])
def test_what_means_nothing_is_refused(root: Path, source: str) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        select(root, [source])


def test_links_are_copied_and_followed_only_where_they_are_named(root: Path) -> None:
    (root / "dir/link").symlink_to("/etc/passwd")
    (root / "named").symlink_to("dir/x")
    (root / "out").symlink_to("../outside")
    (root / "broken").symlink_to("nothing")
    assert "link" in names(root, "dir")
    (entry,) = select(root, ["named"]).entries
    assert (entry.name, entry.path.read_text()) == ("named", "dir/x")
    with pytest.raises(ConfigError, match="leads out of"):
        select(root, ["out"])
    with pytest.raises(ConfigError, match="link to nothing"):
        select(root, ["broken"])


def test_the_digest_follows_names_modes_and_content_alone(root: Path) -> None:
    first = select(root, ["."]).digest()
    os.utime(root / "a.py", (1, 1))
    assert select(root, ["."]).digest() == first
    changes = [
        lambda: (root / "a.py").write_text("other"),
        lambda: (root / "b.py").chmod(0o600),
        lambda: (root / "dir/x").rename(root / "dir/z"),
        lambda: (root / "new").symlink_to("a.py"),
        lambda: (root / "empty").mkdir(),
    ]
    seen = {first}
    for change in changes:
        change()
        seen.add(select(root, ["."]).digest())
    assert len(seen) == len(changes) + 1


def test_an_archive_has_modes_links_and_no_owner(root: Path) -> None:
    os.link(root / "a.py", root / "same")
    (root / "b.py").chmod(0o4755)
    buffer = io.BytesIO()
    count = select(root, ["."]).pack(buffer, mode=None, owners=False)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as archive:
        members = {member.name: member for member in archive}
    assert count == len(members) == 8
    assert {(member.uid, member.gid, member.uname) for member in members.values()} == {(0, 0, "")}
    assert members["b.py"].mode == 0o4755
    assert sorted(member.islnk() for name, member in members.items() if name in ("a.py", "same")) == [False, True]
    buffer = io.BytesIO()
    select(root, ["a.py"]).pack(buffer, mode=0o700, owners=False, renamed="new-name")
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as archive:
        assert [(member.name, member.mode) for member in archive] == [("new-name", 0o700)]


def test_the_part_before_a_wildcard() -> None:
    assert [fixed_prefix(source) for source in ("/a/b", "a/*/c", "/x*", "/a/../b/", "/")] == ["/a/b", "/a", "/", "/b", "/"]
