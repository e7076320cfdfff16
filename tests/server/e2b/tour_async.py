"""The tour through the asynchronous face of the SDK: what it does otherwise than the synchronous one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from e2b import AsyncSandbox, CommandExitException, PtySize, SandboxQuery, TimeoutException


async def commands(sandbox: AsyncSandbox) -> None:
    seen: list[str] = []
    result = await sandbox.commands.run("echo out; echo err >&2", on_stdout=seen.append, on_stderr=seen.append)
    assert (result.stdout, result.stderr, sorted(seen)) == ("out\n", "err\n", ["err\n", "out\n"])
    handle = await sandbox.commands.run("cat; exit 4", background=True, stdin=True)
    await handle.send_stdin("one\n")
    async with sandbox.commands.stream_input(handle.pid) as entry:
        await entry.send("two\n")
        await entry.send(b"three\n")
    await handle.close_stdin()
    with pytest.raises(CommandExitException):
        await handle.wait()
    assert (handle.stdout, handle.stderr, handle.exit_code, handle.error) == ("one\ntwo\nthree\n", "", 4, "exit status 4")
    sleeper = await sandbox.commands.run("sleep 1000", background=True)
    again = await sandbox.commands.connect(sleeper.pid)
    assert sleeper.pid in [process.pid for process in await sandbox.commands.list()]
    await sleeper.disconnect()
    assert await again.kill() is True
    with pytest.raises(CommandExitException):
        await again.wait()
    assert await sandbox.commands.kill(sleeper.pid) is False
    with pytest.raises(TimeoutException):
        await sandbox.commands.run("sleep 60", timeout=0.5)


async def many_at_once(sandbox: AsyncSandbox) -> None:
    results = await asyncio.gather(*(sandbox.commands.run(f"echo {number}") for number in range(40)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(40)]


async def files(sandbox: AsyncSandbox) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 100_000

    await sandbox.files.write("streamed", pieces())
    size = 0
    async with await sandbox.files.read("streamed", format="stream") as stream:
        async for piece in stream:
            size += len(piece)
    assert size == 1_000_000
    await sandbox.files.write_files([{"path": "a", "data": "1"}, {"path": "b", "data": b"2"}])
    assert [entry.name for entry in await sandbox.files.list(".")] == ["a", "b", "streamed"]
    assert await sandbox.files.make_dir("d") is True
    assert (await sandbox.files.rename("a", "d/a")).path == "/home/user/d/a"
    assert (await sandbox.files.get_info("d/a")).size == 1
    await sandbox.files.remove("d")
    assert await sandbox.files.exists("d") is False


async def watches(sandbox: AsyncSandbox) -> None:
    events: asyncio.Queue[Any] = asyncio.Queue()
    ended: asyncio.Queue[Any] = asyncio.Queue()
    handle = await sandbox.files.watch_dir(".", on_event=events.put, on_exit=ended.put, include_entry=True)
    await sandbox.commands.run("echo 1 > seen")
    first = await asyncio.wait_for(events.get(), 20)
    assert (first.name, first.type.value, first.entry.path) == ("seen", "create", "/home/user/seen")
    await handle.stop()
    assert await ended.get() is None


async def terminals(sandbox: AsyncSandbox) -> None:
    shown = bytearray()
    seen = asyncio.Event()

    def show(data: bytes) -> None:
        shown.extend(data)
        if b"24 101" in shown:
            seen.set()

    terminal = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=show)
    await sandbox.pty.resize(terminal.pid, PtySize(rows=24, cols=101))
    again = await sandbox.pty.connect(terminal.pid, on_data=lambda data: None)
    async with sandbox.pty.stream_input(terminal.pid) as entry:
        await entry.send("stty size\n")
    await asyncio.wait_for(seen.wait(), 20)
    await sandbox.pty.send_stdin(terminal.pid, b"exit\n")
    await terminal.wait()
    await again.wait()
    assert await sandbox.pty.kill(terminal.pid) is False


async def life(sandbox: AsyncSandbox) -> None:
    other = await AsyncSandbox.create(metadata={"life": sandbox.sandbox_id})
    pages = AsyncSandbox.list(query=SandboxQuery(metadata={"life": sandbox.sandbox_id}))
    assert [one.sandbox_id for one in await pages.next_items()] == [other.sandbox_id]
    await other.set_timeout(500)
    await other.pause()
    assert await other.is_running() is False
    await other.connect()
    (child,) = await other.fork()
    snapshot = await other.create_snapshot()
    assert snapshot.snapshot_id in [one.snapshot_id for one in await other.list_snapshots().next_items()]
    assert (await child.get_info()).sandbox_id == child.sandbox_id
    assert await child.kill() is True
    assert await AsyncSandbox.kill(other.sandbox_id) is True
    assert isinstance(await sandbox.get_metrics(), list)


TOUR = (commands, many_at_once, files, watches, terminals, life)


async def go(name: str) -> None:
    """One stop of the tour, in a sandbox of its own."""
    stop = next(stop for stop in TOUR if stop.__name__ == name)
    async with await AsyncSandbox.create("base", timeout=300) as sandbox:
        await stop(sandbox)
