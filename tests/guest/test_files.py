"""Files through a real agent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentenv.guest import AgentFailure, Connection, files
from agentenv.guest.files import Change


async def test_content_comes_back_whatever_it_is(connection: Connection, tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "file.bin")
    for content in (b"", b"\0\xff", os.urandom(3_000_000)):
        assert await files.write(connection, path, content) == len(content)
        assert await files.read(connection, path) == content


async def test_a_part_and_an_end(connection: Connection, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    await files.write(connection, path, b"0123456789", mode=0o600)
    await files.write(connection, path, b"abc", append=True)
    assert await files.read(connection, path, offset=8, length=3) == b"89a"
    entry = await files.stat(connection, path)
    assert (entry.type, entry.size, entry.mode & 0o7777, entry.user) == ("file", 13, 0o600, "root" if os.geteuid() == 0 else entry.user)


async def test_a_broken_off_write_leaves_the_old_file(connection: Connection, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    async def source() -> AsyncIterator[bytes]:
        yield b"new"
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError, match="the source failed"):
        await files.write(connection, str(path), source())
    await connection.call("ping", payload=b"")
    assert path.read_bytes() == b"old"
    assert {entry.name for entry in await files.list_directory(connection, str(tmp_path))} == {"file", "machine"}


async def test_a_refused_write_tells_why_though_more_was_to_come(connection: Connection) -> None:
    with pytest.raises(AgentFailure) as caught:
        await files.write(connection, "/proc/no-such-file", b"x" * 2_000_000, parents=False)
    assert caught.value.code in ("ENOENT", "EACCES", "EPERM")


async def test_a_reader_that_stops_early_frees_the_stream(connection: Connection, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(5_000_000))
    stream = files.reader(connection, str(path))
    assert await stream.read()
    stream.cancel()
    assert await files.read(connection, str(path), length=3) == bytes(3)


async def test_directories(connection: Connection, tmp_path: Path) -> None:
    root = str(tmp_path / "d")
    assert await files.make_directory(connection, f"{root}/a/b")
    assert not await files.make_directory(connection, f"{root}/a/b")
    await files.write(connection, f"{root}/a/file", b"x")
    await connection.call("symlink", path=f"{root}/link", target="a")
    assert sorted(entry.name for entry in await files.list_directory(connection, root)) == ["a", "link"]
    deep = {entry.path: entry.type for entry in await files.list_directory(connection, root, depth=5)}
    assert deep == {f"{root}/a": "dir", f"{root}/a/b": "dir", f"{root}/a/file": "file", f"{root}/link": "symlink"}
    assert (await files.stat(connection, f"{root}/link", follow=False)).target == "a"
    await connection.call("rename", path=f"{root}/a/file", to=f"{root}/moved")
    await connection.call("remove", path=root, recursive=True)
    with pytest.raises(AgentFailure, match="ENOENT"):
        await files.stat(connection, root)


async def test_a_large_listing_is_whole(connection: Connection, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(3000):
        (folder / f"a-rather-long-name-so-that-several-events-are-needed-{number}").touch()
    assert len(await files.list_directory(connection, str(folder))) == 3000


async def test_a_listing_has_a_limit(connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_ENTRIES", 2)
    with pytest.raises(AgentFailure, match="E2BIG"):
        await files.list_directory(connection, "/usr/bin")
    await connection.call("ping", payload=b"")


async def test_a_watch_sees_changes_until_it_is_stopped(connection: Connection, tmp_path: Path) -> None:
    watch = await files.watch(connection, str(tmp_path))
    target = tmp_path / "file"
    target.write_bytes(b"x")
    seen: list[Change | None] = []
    while not any(change and change.type == "write" for change in seen):
        seen.append(await watch.next())
    assert Change("create", str(target)) in seen
    target.unlink()
    while (change := await watch.next()) != Change("remove", str(target)):
        assert change is not None
    watch.stop()
    watch.stop()
    assert await watch.next() is None


async def test_a_slow_watcher_is_told_of_lost_changes(connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_CHANGES", 3)
    watch = await files.watch(connection, str(tmp_path))
    for number in range(10):
        (tmp_path / str(number)).touch()
    changes = [await watch.next() for _ in range(4)]
    assert changes[-1] == Change("overflow")


async def test_watching_nothing_says_so(connection: Connection) -> None:
    with pytest.raises(AgentFailure, match="ENOENT"):
        await files.watch(connection, "/no/such/directory")


async def test_many_files_at_once(connection: Connection, tmp_path: Path) -> None:
    await asyncio.gather(*(files.write(connection, str(tmp_path / str(number)), b"%d" % number) for number in range(200)))
    contents = await asyncio.gather(*(files.read(connection, str(tmp_path / str(number))) for number in range(200)))
    assert contents == [b"%d" % number for number in range(200)]
