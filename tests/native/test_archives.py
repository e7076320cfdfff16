"""Archives in and out, checked against Python's own tarfile; and what a hostile archive must not do."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.native.client import CANCEL, DATA, AgentError, Client

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files to another user")
LONG = "a-directory-with-a-long-name/" * 8 + "file-" + "x" * 150


def make_tree(root: Path) -> None:
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "file").write_bytes(os.urandom(200_000))
    (root / "file").chmod(0o640)
    os.link(root / "file", root / "sub" / "hard")
    (root / "link").symlink_to("sub/hard")
    (root / "long-link").symlink_to("y" * 200)
    (root / LONG).parent.mkdir(parents=True)
    (root / LONG).write_text("deep")
    (root / "ünïcode").write_text("u")
    os.mkfifo(root / "fifo")
    os.utime(root / "sub", (1_000_000_000, 1_000_000_000))


def describe(root: Path) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(directory) / name
            info = path.lstat()
            content: object = None
            if path.is_symlink():
                content = str(path.readlink())
            elif stat.S_ISREG(info.st_mode):
                content = path.read_bytes()
            # Python's tarfile leaves an extracted link the time of its making.
            mtime = None if path.is_symlink() else int(info.st_mtime)
            found[str(path.relative_to(root))] = (stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode), mtime, content)
    return found


def unpack(client: Client, archive: bytes, path: Path, **parameters: Any) -> dict[str, Any]:
    stream = client.open("tar_in", path=str(path), **parameters)
    client.upload(stream, archive)
    return client.finish(stream).result


def archive_of(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for member, content in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def test_out_is_what_python_reads(client: Client, tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    outcome = client.call("tar_out", path=str(tmp_path / "tree"))
    with tarfile.open(fileobj=io.BytesIO(outcome.data)) as archive:
        assert len(archive.getmembers()) == outcome.result["entries"]
        assert LONG in archive.getnames()
        # Python 3.11.2, Debian 12's, has no filters yet and does as "tar" does.
        archive.extractall(tmp_path / "copy", **({"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}))
    assert describe(tmp_path / "copy") == describe(tmp_path / "tree")
    assert (tmp_path / "copy/file").stat().st_nlink == 2


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_in_is_what_python_wrote(client: Client, tmp_path: Path, form: int) -> None:
    make_tree(tmp_path / "tree")
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        archive.add(tmp_path / "tree", arcname=".")
    unpack(client, file.getvalue(), tmp_path / "new" / "copy")
    assert describe(tmp_path / "new" / "copy") == describe(tmp_path / "tree")
    assert (tmp_path / "new/copy/file").stat().st_nlink == 2


def test_round_trip(client: Client, tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    archive = client.call("tar_out", path=str(tmp_path / "tree")).data
    made = unpack(client, archive, tmp_path / "copy")
    assert made["entries"] == len(describe(tmp_path / "tree"))
    assert describe(tmp_path / "copy") == describe(tmp_path / "tree")


def test_one_file_is_packed_under_its_name(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    outcome = client.call("tar_out", path=str(tmp_path / "file"))
    with tarfile.open(fileobj=io.BytesIO(outcome.data)) as archive:
        assert archive.getnames() == ["file"]
    assert outcome.result == {"entries": 1}


def test_what_is_there_is_replaced(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "outside").write_text("untouched")
    (tmp_path / "link").symlink_to("outside")
    unpack(client, archive_of((member("file"), b"new"), (member("link"), b"plain")), tmp_path)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "outside").read_text() == "untouched"


def test_a_link_to_a_directory_inside_is_used(client: Client, tmp_path: Path) -> None:
    (tmp_path / "usr" / "lib").mkdir(parents=True)
    (tmp_path / "lib").symlink_to("usr/lib")
    unpack(client, archive_of((member("lib", tarfile.DIRTYPE, mode=0o755), b""), (member("lib/x"), b"x")), tmp_path)
    assert (tmp_path / "lib").is_symlink()
    assert (tmp_path / "usr/lib/x").read_bytes() == b"x"


@pytest.mark.parametrize(
    "members",
    [
        [member("../escaped")],
        [member("a/../../escaped")],
        [member("/escaped")],
        [member("out", tarfile.SYMTYPE, ".."), member("out/escaped")],
        [member("out", tarfile.SYMTYPE, "{parent}"), member("out/escaped")],
        [member("out", tarfile.SYMTYPE, ".."), member("out/sub/escaped")],
        [member("hard", tarfile.LNKTYPE, "../secret")],
        [member("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [member("out", tarfile.SYMTYPE, ".."), member("hard", tarfile.LNKTYPE, "out/secret")],
    ],
)
def test_nothing_leaves_the_directory(client: Client, tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    (tmp_path / "secret").write_text("secret")
    for info in members:
        info.linkname = info.linkname.replace("{parent}", str(tmp_path))
    with pytest.raises(AgentError, match="would leave the directory") as caught:
        unpack(client, archive_of(*((info, b"x") for info in members)), tmp_path / "root")
    assert caught.value.code == "EXDEV"
    assert {path.name for path in tmp_path.iterdir()} == {"root", "secret"}
    assert not (tmp_path / "root" / "hard").exists()


def test_a_directory_entry_does_not_follow_a_link_outside(client: Client, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    link = member("d", tarfile.SYMTYPE, str(tmp_path / "outside"))
    archive = archive_of((link, b""), (member("d", tarfile.DIRTYPE, mode=0o700), b""), (member("d/x"), b"x"))
    unpack(client, archive, tmp_path / "root")
    assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "root/d/x").read_bytes() == b"x"


def test_what_is_no_archive(client: Client, tmp_path: Path) -> None:
    for content in (b"no archive at all" * 100, archive_of((member("x"), b"y" * 5000))[:3000]):
        with pytest.raises(AgentError) as caught:
            unpack(client, content, tmp_path / "root")
        assert caught.value.code == "EPROTO"
    assert unpack(client, b"", tmp_path / "root") == {"entries": 0}


@needs_root
def test_owners(client: Client, tmp_path: Path) -> None:
    info = member("dir/file")
    info.uid, info.gid = 1234, 2345
    archive = archive_of((info, b"x"))
    unpack(client, archive, tmp_path / "mine")
    assert (tmp_path / "mine/dir/file").stat().st_uid == 0
    unpack(client, archive, tmp_path / "theirs", user="nobody")
    assert {path.owner() for path in (tmp_path / "theirs").rglob("*")} == {"nobody"}
    unpack(client, archive, tmp_path / "archive", owners=True)
    assert (tmp_path / "archive/dir/file").stat().st_uid == 1234


def test_faults(client: Client, tmp_path: Path) -> None:
    for op, path, code in (("tar_out", tmp_path / "missing", "ENOENT"), ("tar_out", Path("/dev/null"), "EINVAL")):
        with pytest.raises(AgentError) as caught:
            client.call(op, path=str(path))
        assert caught.value.code == code
    (tmp_path / "file").touch()
    with pytest.raises(AgentError) as caught:
        unpack(client, b"", tmp_path / "file" / "below")
    assert caught.value.code == "ENOTDIR"


def test_a_long_archive_delays_nobody(client: Client, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(30_000_000))
    client.grants = False
    stream = client.open("tar_out", path=str(tmp_path))
    assert client.receive(stream)[0] == DATA
    assert client.run("echo", "meanwhile").data == b"meanwhile\n"
    client.send(stream, CANCEL)
    with pytest.raises(AgentError, match="ECANCELED"):
        client.finish(stream)
