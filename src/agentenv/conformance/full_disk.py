"""A check of what becomes of a sandbox when the disk of AGENTENV_HOME is full in the middle of a snapshot."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentenv.conformance.aside import MOUNTS, aside
from agentenv.conformance.life import expect_alive
from agentenv.conformance.subject import Subject
from agentenv.errors import StorageFull
from agentenv.isolation.conformance import check, expect, expect_equal, expect_refusal
from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox

MIB = 1 << 20
_ROOMY = 4096 * MIB
_WRITTEN = 48 * MIB
_LEFT = 12 * MIB
"""What is free when the snapshot begins: some of it can be written, and not all of what the sandbox has."""

_OF_A_NODE = {"owners", "snapshots"}
"""What a home has of its own here; images and all else are those of the subject's."""


@check("snapshots.full-disk", needs=("filesystem_snapshot",), seconds=300)
async def full_disk(subject: Subject) -> None:
    """A disk that is full in the middle of a snapshot is `StorageFull` and leaves nothing; the sandbox goes on, and can be kept later."""

    async def work() -> None:
        with _small_home(subject.node.home) as home:
            async with await Node.open(home) as node:
                inside = Subject(subject.yard, node, subject.image)
                try:
                    await _fill_and_snapshot(inside)
                finally:
                    await inside.close()

    await aside(MOUNTS, work)


async def _fill_and_snapshot(subject: Subject) -> None:
    sandbox = await subject.create(resources={"memory": 256 * MIB, "storage": 256 * MIB})
    await sandbox.commands.run(f"head -c {_WRITTEN} /dev/urandom > /root/large; sync", check=True)
    home = subject.node.home
    await asyncio.to_thread(_give_all_that_was_promised, subject.node.owner.machine_directory(sandbox.id))
    await asyncio.to_thread(_resize, home, _used(home) + _LEFT)
    for memory in (False, True) if subject.capabilities.memory_snapshot else (False,):
        await _expect_refused(subject, sandbox, memory)
    await asyncio.to_thread(_resize, home, _ROOMY)
    child = await subject.create(snapshot=await subject.snapshot(sandbox, memory=False))
    sums = [(await one.commands.run("sha256sum /root/large", check=True)).stdout for one in (sandbox, child)]
    expect_equal("the file in a sandbox from the snapshot for which there was room", sums[1], sums[0])


async def _expect_refused(subject: Subject, sandbox: AsyncSandbox, memory: bool) -> None:
    with expect_refusal("a snapshot for which there is no room", StorageFull) as caught:
        await subject.snapshot(sandbox, memory=memory)
    expect("AGENTENV_HOME" in str(caught[0]), f"it does not say which disk is full: {caught[0]}")
    home, owner = subject.node.home, subject.node.owner.directory
    places = [owner / "staging", *(home / "snapshots" / name for name in ("layers", "memory"))]
    left = await asyncio.to_thread(lambda: [path.name for place in places for path in place.iterdir()])
    expect_equal("what is left of it", left, [])
    expect_equal("the snapshots", await subject.node.snapshots(), [])
    await expect_alive(sandbox)


@contextmanager
def _small_home(home: Path) -> Iterator[Path]:
    """A home in memory that has the images of the other. Its mounts are seen by this thread and what it starts only."""
    with tempfile.TemporaryDirectory(prefix="agentenv-conformance-") as place:
        small = Path(place)
        _mount("-t", "tmpfs", "-o", f"size={_ROOMY},mode=700", "small", place)
        try:
            for shared in home.iterdir():
                if shared.is_dir() and shared.name not in _OF_A_NODE:
                    (small / shared.name).mkdir()
                    _mount("--bind", str(shared), str(small / shared.name))
            yield small
        finally:
            subprocess.run(["umount", "--recursive", "--lazy", place], check=True, capture_output=True)


def _give_all_that_was_promised(directory: Path) -> None:
    """Takes room for each hole in a machine's files: what it writes itself shall not meet the full disk, only what is kept of it."""
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("r+b") as file:
                size = os.fstat(file.fileno()).st_size
                if size:
                    os.posix_fallocate(file.fileno(), 0, size)


def _used(home: Path) -> int:
    found = os.statvfs(home)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _resize(home: Path, size: int) -> None:
    _mount("-o", f"remount,size={size}", str(home))


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


CHECKS = (full_disk,)
