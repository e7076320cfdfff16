"""Files of a sandbox: every form of content, every failure by its name."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentenv.errors import SandboxFileError
from agentenv.sandbox import AsyncSandbox, FilesystemEvent, FilesystemEventType, FileType, WriteEntry


@pytest.fixture
async def place(sandbox: AsyncSandbox) -> str:
    """An empty directory in the sandbox."""
    return (await sandbox.commands.run("mktemp -d")).stdout.strip()


async def test_three_forms_of_reading(sandbox: AsyncSandbox, place: str) -> None:
    content = "line ü\n" * 100_000
    info = await sandbox.files.write(f"{place}/a/b", content)
    assert (info.name, info.path, info.size) == ("b", f"{place}/a/b", len(content.encode()))
    assert await sandbox.files.read(f"{place}/a/b") == content
    assert await sandbox.files.read(f"{place}/a/b", format="bytes") == content.encode()
    pieces = [piece async for piece in await sandbox.files.read(f"{place}/a/b", format="stream")]
    assert len(pieces) > 1
    assert b"".join(pieces) == content.encode()
    with pytest.raises(ValueError, match="'stream'"):
        await sandbox.files.read(f"{place}/a/b", format="json")  # type: ignore[call-overload]


def numbers() -> Iterator[bytes]:
    yield from (b"%d" % number for number in range(5))


async def later() -> AsyncIterator[bytes]:
    for number in range(5):
        yield b"%d" % number


@pytest.mark.parametrize(
    "make",
    [
        lambda: "01234",
        lambda: b"01234",
        lambda: bytearray(b"01234"),
        lambda: memoryview(b"01234"),
        lambda: io.BytesIO(b"01234"),
        lambda: io.StringIO("01234"),
        numbers,
        later,
    ],
    ids=["str", "bytes", "bytearray", "memoryview", "BytesIO", "StringIO", "iterator", "async iterator"],
)
async def test_every_source_of_content(local: AsyncSandbox, tmp_path: Path, make: object) -> None:
    await local.files.write(str(tmp_path / "x"), make())  # type: ignore[operator]
    assert (tmp_path / "x").read_text() == "01234"


async def test_an_open_file_and_what_is_no_content(local: AsyncSandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(2_500_000))
    with source.open("rb") as file:
        assert (await local.files.write(str(tmp_path / "x"), file)).size == 2_500_000
    with pytest.raises(TypeError, match="cannot be written from int"):
        await local.files.write(str(tmp_path / "y"), 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="iterator of int"):
        await local.files.write(str(tmp_path / "y"), [5])  # type: ignore[list-item]
    assert not (tmp_path / "y").exists()


async def test_many_files(sandbox: AsyncSandbox, place: str) -> None:
    written = await sandbox.files.write_files([(f"{place}/{number}", str(number)) for number in range(40)])
    assert [info.name for info in written] == [str(number) for number in range(40)]
    assert len(await sandbox.files.list(place)) == 40
    with pytest.raises(SandboxFileError):
        await sandbox.files.write_files([WriteEntry(f"{place}/0/not-a-directory", "x"), (f"{place}/fine", "x")])


async def test_what_is_there(sandbox: AsyncSandbox, place: str) -> None:
    await sandbox.files.write(f"{place}/file", "12345", mode=0o640)
    await sandbox.files.symlink(f"{place}/link", "file")
    info = await sandbox.files.get_info(f"{place}/file")
    assert (info.type, info.size, info.mode, info.permissions) == (FileType.FILE, 5, 0o640, "rw-r-----")
    assert info.modified_time.tzinfo is not None
    assert (await sandbox.files.get_info(f"{place}/link")).symlink_target == "file"
    assert (await sandbox.files.get_info(f"{place}/link", follow=True)).size == 5
    await sandbox.files.chmod(f"{place}/file", 0o600)
    assert (await sandbox.files.get_info(f"{place}/file")).permissions == "rw-------"
    assert await sandbox.files.exists(f"{place}/link")
    assert not await sandbox.files.exists(f"{place}/none")
    assert not await sandbox.files.exists(f"{place}/file/below")


async def test_directories(sandbox: AsyncSandbox, place: str) -> None:
    assert await sandbox.files.make_dir(f"{place}/a/b")
    assert not await sandbox.files.make_dir(f"{place}/a/b")
    await sandbox.files.write(f"{place}/a/b/c", "x")
    assert [entry.name for entry in await sandbox.files.list(place)] == ["a"]
    assert sorted(entry.path for entry in await sandbox.files.list(place, depth=3)) == [f"{place}/a", f"{place}/a/b", f"{place}/a/b/c"]
    assert (await sandbox.files.rename(f"{place}/a/b/c", f"{place}/d")).path == f"{place}/d"
    await sandbox.files.remove(f"{place}/a")
    assert [entry.name for entry in await sandbox.files.list(place)] == ["d"]
    await sandbox.files.remove(f"{place}/gone", missing_ok=True)
    with pytest.raises(ValueError, match="at least 1"):
        await sandbox.files.list(place, depth=0)


async def test_failures_have_the_errno_and_the_path(sandbox: AsyncSandbox, place: str, tmp_path: Path) -> None:
    for call, path, code in [
        (sandbox.files.read(f"{place}/none"), f"{place}/none", "ENOENT"),
        (sandbox.files.read(place), place, "EISDIR"),
        (sandbox.files.list(f"{place}/none"), f"{place}/none", "ENOENT"),
        (sandbox.files.remove(f"{place}/none"), f"{place}/none", "ENOENT"),
        (sandbox.files.rename(f"{place}/none", f"{place}/other"), f"{place}/none", "ENOENT"),
        (sandbox.files.download_dir(f"{place}/none", tmp_path / "unused"), f"{place}/none", "ENOENT"),
        (sandbox.files.watch_dir(f"{place}/none"), f"{place}/none", "ENOENT"),
    ]:
        with pytest.raises(SandboxFileError) as caught:
            await call  # type: ignore[misc]
        assert (caught.value.code, caught.value.path) == (code, path)
    assert not (tmp_path / "unused").exists()


async def test_a_watch_calls_back_until_it_is_stopped(sandbox: AsyncSandbox, place: str) -> None:
    seen: list[FilesystemEvent] = []
    watch = await sandbox.files.watch_dir(place, on_event=seen.append, recursive=True)
    await sandbox.files.make_dir(f"{place}/sub")
    await sandbox.commands.run(f"echo x > {place}/file")
    await watch.stop()
    await watch.stop()
    assert FilesystemEvent(FilesystemEventType.CREATE, "sub") in seen
    assert FilesystemEvent(FilesystemEventType.WRITE, "file") in seen


async def test_a_watch_can_be_read(sandbox: AsyncSandbox, place: str) -> None:
    watch = await sandbox.files.watch_dir(place)
    await sandbox.commands.run(f"touch {place}/one")
    assert await anext(watch) == FilesystemEvent(FilesystemEventType.CREATE, "one")
    await sandbox.commands.run(f"touch {place}/two")
    while FilesystemEvent(FilesystemEventType.CREATE, "two") not in await watch.get_new_events():
        pass
    await watch.stop()
    assert [event async for event in watch] == []


async def test_directories_go_in_and_out(sandbox: AsyncSandbox, place: str, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "x").write_text("x")
    (source / "skip.pyc").write_text("x")
    sent = await sandbox.upload_dir(source, f"{place}/in", exclude=["*.pyc"])
    assert sent.entries == 2
    assert await sandbox.files.read(f"{place}/in/sub/x") == "x"
    await sandbox.commands.run(f"ln -s /etc/passwd {place}/in/out-link; echo new > {place}/in/new")
    received = await sandbox.download_dir(f"{place}/in", back)
    assert received.skipped == ("out-link",)
    assert {path.name for path in back.rglob("*")} == {"sub", "x", "new"}
