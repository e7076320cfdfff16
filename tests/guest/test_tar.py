"""Directories in and out, and archives that try to leave where they are unpacked."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from pathlib import Path

import pytest

from agentenv.errors import SandboxFileError
from agentenv.guest import AgentFailure, Connection, tar
from agentenv.guest.tar import Transfer


def make_tree(root: Path) -> None:
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "sub" / "data.bin").write_bytes(os.urandom(700_000))
    (root / "run.sh").write_text("#!/bin/sh\necho hi\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("sub/data.bin")
    (root / ("long-" * 30)).mkdir()
    (root / ("long-" * 30) / "ünïcode ✓.txt").write_text("x")
    (root / "cache.pyc").write_text("x")
    os.link(root / "run.sh", root / "sub" / "hard")


def tree(root: Path) -> dict[str, tuple[str, object]]:
    found: dict[str, tuple[str, object]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("dir", None)
        else:
            found[name] = (f"file {path.stat().st_mode & 0o777:o}", path.read_bytes())
    return found


async def test_a_directory_survives_the_way_in_and_out(connection: Connection, tmp_path: Path) -> None:
    source, inside, back = tmp_path / "source", tmp_path / "inside", tmp_path / "back"
    make_tree(source)
    sent = await tar.upload_directory(connection, source, str(inside))
    assert tree(inside) == tree(source)
    assert sent.entries == len(tree(source))
    received = await tar.download_directory(connection, str(inside), back)
    assert tree(back) == tree(source)
    assert received.skipped == ()


async def test_patterns_leave_out_names_and_paths(connection: Connection, tmp_path: Path) -> None:
    source, inside, back = tmp_path / "source", tmp_path / "inside", tmp_path / "back"
    make_tree(source)
    await tar.upload_directory(connection, source, str(inside), exclude=["*.pyc", "sub/empty", "long-*"])
    assert set(tree(inside)) == {"sub", "sub/data.bin", "sub/hard", "run.sh", "link"}
    await tar.download_directory(connection, str(inside), back, exclude=["sub"])
    assert set(tree(back)) == {"run.sh", "link"}


async def test_a_limit_on_what_comes_out(connection: Connection, tmp_path: Path) -> None:
    source = tmp_path / "source"
    make_tree(source)
    with pytest.raises(SandboxFileError, match="EFBIG"):
        await tar.download_directory(connection, str(source), tmp_path / "back", max_bytes=100_000)
    await connection.call("ping", payload=b"")


async def test_what_is_missing_is_said_by_its_side(connection: Connection, tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="no directory of this machine"):
        await tar.upload_directory(connection, tmp_path / "nowhere", "/tmp/x")
    with pytest.raises(AgentFailure, match="ENOENT"):
        await tar.download_directory(connection, "/no/such/directory", tmp_path / "back")
    with pytest.raises(AgentFailure):
        await tar.upload_directory(connection, tmp_path, "/proc/no/such")


async def test_a_cancelled_copy_ends(connection: Connection, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.truncate(4 << 30)
    copying = asyncio.create_task(tar.upload_directory(connection, source, str(tmp_path / "inside")))
    await asyncio.sleep(0.1)
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert (await connection.call("ping", payload=b"x"))["payload"] == b"x"


class FromBytes(tar._Source):
    """An archive that did not come from an agent."""

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)


def unpack(members: list[tuple[tarfile.TarInfo, bytes]], target: Path) -> Transfer:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return tar._unpack(FromBytes(buffer.getvalue()), target, (), None, "/x")


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o4777
    return info


@pytest.mark.parametrize(
    "attack",
    [
        [(member("../evil"), b"x")],
        [(member("a/../../evil"), b"x")],
        [(member("link", tarfile.SYMTYPE, "../outside"), b""), (member("link/evil"), b"x")],
        [(member("link", tarfile.SYMTYPE, "/"), b"")],
        [(member("a", tarfile.DIRTYPE), b""), (member("a/link", tarfile.SYMTYPE, "../.."), b""), (member("a/link/evil"), b"x")],
        [(member("hard", tarfile.LNKTYPE, "../outside/secret"), b"")],
        [(member("in", tarfile.SYMTYPE, "sub"), b""), (member("in/evil"), b"x")],
        [(member("device", tarfile.CHRTYPE), b"")],
        [(member("pipe", tarfile.FIFOTYPE), b"")],
    ],
    ids=lambda attack: attack[-1][0].name,
)
def test_nothing_outside_is_touched(attack: list[tuple[tarfile.TarInfo, bytes]], tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    (outside / "secret").write_text("secret")
    report = unpack(attack, target)
    assert report.skipped
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "target"}
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").stat().st_nlink == 1
    assert not any(path.is_symlink() and not path.resolve().is_relative_to(target) for path in target.rglob("*"))


def test_an_absolute_name_is_taken_as_relative_and_special_bits_are_dropped(tmp_path: Path) -> None:
    unpack([(member("/etc/evil"), b"x")], tmp_path)
    assert (tmp_path / "etc" / "evil").stat().st_mode & 0o7777 == 0o777


def test_a_later_member_replaces_a_link_instead_of_following_it(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("old")
    unpack([(member("x", tarfile.SYMTYPE, "victim"), b""), (member("x"), b"new")], tmp_path)
    assert (victim.read_text(), (tmp_path / "x").read_text()) == ("old", "new")
