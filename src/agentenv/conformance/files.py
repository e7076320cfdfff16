"""Checks of files: contents, everything that can be done with them, whole directories, and being told of changes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from agentenv.conformance.subject import Subject
from agentenv.errors import SandboxFileError
from agentenv.isolation.conformance import check, expect, expect_equal, expect_refusal
from agentenv.sandbox import FileType

_PIECE, _PIECES = 1 << 20, 24


@check("files.contents")
async def contents(subject: Subject) -> None:
    """What is written is read again, as text and as bytes; directories above are made, an addition is appended, modes are kept."""
    files = (await subject.sandbox()).files
    every_byte = bytes(range(256)) * 10
    await files.write("/root/made/for/it/bytes", every_byte, mode=0o640)
    expect_equal("the bytes", await files.read("/root/made/for/it/bytes", format="bytes"), every_byte)
    await files.write("/root/text", "zeile\n", mode=0o755)
    await files.write("/root/text", "naïve ☃", append=True)
    expect_equal("the text", await files.read("/root/text"), "zeile\nnaïve ☃")
    expect_equal("the mode", (await files.get_info("/root/text")).mode, 0o755)
    await files.write("/root/empty", b"")
    expect_equal("the size of an empty file", (await files.get_info("/root/empty")).size, 0)


@check("files.large")
async def large(subject: Subject) -> None:
    """A file of many megabytes goes in from an iterator and comes out as a stream, whole."""
    sandbox = await subject.sandbox()
    piece = os.urandom(_PIECE)
    wanted = hashlib.sha256()
    for _ in range(_PIECES):
        wanted.update(piece)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(_PIECES):
            yield piece

    await sandbox.files.write("/root/large", pieces())
    expect_equal("the digest inside", (await sandbox.commands.run("sha256sum /root/large")).stdout.split()[0], wanted.hexdigest())
    found = hashlib.sha256()
    async for part in await sandbox.files.read("/root/large", format="stream"):
        found.update(part)
    expect_equal("the digest of what came out", found.hexdigest(), wanted.hexdigest())
    await sandbox.files.remove("/root/large")


@check("files.operations")
async def operations(subject: Subject) -> None:
    """Files are listed, described, renamed, linked, given other modes and owners, and removed."""
    files = (await subject.sandbox()).files
    await files.remove("/root/place", missing_ok=True)
    expect_equal("whether a new directory was made", await files.make_dir("/root/place/below"), True)
    expect_equal("whether it was made again", await files.make_dir("/root/place/below"), False)
    await files.write("/root/place/a", "content")
    await files.symlink("/root/place/link", "a")
    await files.rename("/root/place/a", "/root/place/below/b")
    await files.chmod("/root/place/below/b", 0o600)
    found = {entry.path: entry for entry in await files.list("/root/place", depth=2)}
    expect_equal("the listing", sorted(found), ["/root/place/below", "/root/place/below/b", "/root/place/link"])
    told = found["/root/place/below/b"]
    expect_equal("type, size and mode of the file", (told.type, told.size, told.mode), (FileType.FILE, 7, 0o600))
    link = found["/root/place/link"]
    expect_equal("type and target of the link", (link.type, link.symlink_target), (FileType.SYMLINK, "a"))
    await files.remove("/root/place")
    expect(not await files.exists("/root/place/below/b"), "a removed directory is still there.")


@check("files.owners", needs=("users",))
async def owners(subject: Subject) -> None:
    """A file may be given to another user, and one that is written for a user is that user's."""
    sandbox = await subject.sandbox()
    await sandbox.files.write("/tmp/given", "x")
    await sandbox.files.chown("/tmp/given", 1234)
    await sandbox.files.write("/tmp/theirs", "x", user=1000)
    told = await sandbox.commands.run("stat -c %u /tmp/given /tmp/theirs")
    expect_equal("the owners", told.stdout.split(), ["1234", "1000"])


@check("files.mistakes")
async def mistakes(subject: Subject) -> None:
    """What cannot be done is a `SandboxFileError` with the system's name for why, and changes nothing."""
    files = (await subject.sandbox()).files
    await files.write("/root/plain", "as it was")
    for code, attempt in (
        ("ENOENT", lambda: files.read("/no/such/file")),
        ("ENOTDIR", lambda: files.read("/root/plain/below")),
        ("EISDIR", lambda: files.read("/root")),
        ("ENOENT", lambda: files.remove("/no/such/file")),
        ("ENOENT", lambda: files.rename("/no/such/file", "/root/plain")),
    ):
        with expect_refusal(f"what should end with {code}", SandboxFileError) as caught:
            await attempt()
        expect_equal("the code", getattr(caught[0], "code", None), code)
    expect_equal("the file beside", await files.read("/root/plain"), "as it was")


@check("files.broken-off")
async def broken_off(subject: Subject) -> None:
    """A write that is broken off leaves the old content, and nothing beside it."""
    files = (await subject.sandbox()).files
    await files.remove("/root/kept", missing_ok=True)
    await files.write("/root/kept/file", "as it was")

    async def breaks() -> AsyncIterator[bytes]:
        yield b"new" * 100_000
        raise ConnectionAbortedError("made to fail")

    with expect_refusal("a source that fails", ConnectionAbortedError):
        await files.write("/root/kept/file", breaks())
    expect_equal("the content", await files.read("/root/kept/file"), "as it was")
    expect_equal("what is beside it", [entry.name for entry in await files.list("/root/kept")], ["file"])


@check("files.directories")
async def directories(subject: Subject) -> None:
    """A directory goes in and comes out again the same: contents, modes, links, empty directories, long and odd names."""
    sandbox = await subject.sandbox()
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "source", Path(place) / "target"
        await asyncio.to_thread(_make_tree, source)
        await sandbox.files.remove("/root/tree", missing_ok=True)
        await sandbox.upload_dir(source, "/root/tree")
        await sandbox.download_dir("/root/tree", target)
        expect_equal("the tree", await asyncio.to_thread(_described, target), await asyncio.to_thread(_described, source))


@check("files.watch")
async def watch(subject: Subject) -> None:
    """A watched directory tells of what is made, written and removed in it, and below it where that was asked for."""
    sandbox = await subject.sandbox()
    await sandbox.files.make_dir("/root/watched/below")
    watching = await sandbox.files.watch_dir("/root/watched", recursive=True)
    await sandbox.commands.run("echo x > /root/watched/one; echo y > /root/watched/below/two; rm /root/watched/one")
    missing = {("create", "one"), ("create", "below/two"), ("write", "below/two"), ("remove", "one")}
    async for event in watching:
        missing.discard((str(event.type), event.name))
        if not missing:
            break
    expect(not missing, f"it ended without telling of {sorted(missing)}.")
    await watching.stop()


def _make_tree(root: Path) -> None:
    (root / "empty").mkdir(parents=True)
    (root / "deep" / ("d" * 120)).mkdir(parents=True)
    (root / "deep" / ("d" * 120) / ("f" * 120)).write_bytes(os.urandom(100_000))
    (root / "tool").write_text("#!/bin/sh\n")
    (root / "tool").chmod(0o755)
    (root / "été ☃ two words").write_text("odd")
    (root / "link").symlink_to("tool")
    for number in range(50):
        (root / f"small{number}").write_text(str(number))


def _described(root: Path) -> dict[str, tuple[int, str]]:
    """Each path with its mode and, for a file its digest, for a link its target."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(root))] = (0, str(path.readlink()))
        else:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
            found[str(path.relative_to(root))] = (path.stat().st_mode & 0o777, content)
    return found


CHECKS = (contents, large, operations, owners, mistakes, broken_off, directories, watch)
