"""Terminals."""

from __future__ import annotations

import pytest

from agentenv.errors import NotFound, SandboxFileError
from agentenv.sandbox import AsyncCommandHandle, AsyncSandbox, PtySize


async def read_until(handle: AsyncCommandHandle, sign: bytes) -> bytes:
    seen = b""
    async for piece in handle:
        assert piece.pty is not None
        seen += piece.pty
        if sign in seen:
            return seen
    raise AssertionError(f"{sign!r} did not come; the terminal showed {seen!r}")


async def test_a_shell_on_a_terminal(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.pty.create(PtySize(rows=30, cols=100), envs={"PS1": "$ "}, cwd="/usr")
    await sandbox.pty.send_stdin(handle.pid, "tty; pwd; stty size; echo $TERM; echo e''nd\n")
    seen = await read_until(handle, b"\r\nend")
    assert b"/dev/pts/" in seen
    assert b"/usr\r\n30 100\r\nxterm-256color\r\n" in seen
    await sandbox.pty.resize(handle.pid, (40, 120))
    await handle.send_stdin("stty size; echo e''nd2\n")
    assert b"40 120" in await read_until(handle, b"\r\nend2")
    assert [process.pty for process in await sandbox.commands.list()] == [True]
    assert await sandbox.pty.kill(handle.pid)
    assert (await handle.wait()).exit_code == 137
    assert not await sandbox.pty.kill(handle.pid)


async def test_a_program_of_its_own_and_its_callback(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.pty.create((24, 80), cmd=["sh", "-c", "echo hello; exit 3"])
    shown: list[bytes] = []
    result = await handle.wait(on_pty=shown.append)
    assert (result.exit_code, b"".join(shown)) == (3, b"hello\r\n")


async def test_an_interrupt_is_typed(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.pty.create(cmd="echo ready; sleep 60")
    await read_until(handle, b"ready")
    await handle.send_stdin(b"\x03")
    assert (await handle.wait()).exit_code == 130


async def test_a_terminal_is_found_again(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.pty.create(cmd="echo ready; cat")
    await read_until(handle, b"ready")
    await handle.disconnect()
    again = await sandbox.pty.connect(handle.pid)
    await again.send_stdin("typed\n")
    await read_until(again, b"typed\r\ntyped\r\n")
    with pytest.raises(NotFound):
        await sandbox.pty.resize(999999, (1, 1))


async def test_what_cannot_start(sandbox: AsyncSandbox) -> None:
    with pytest.raises(SandboxFileError, match="/no/such"):
        await sandbox.pty.create(cwd="/no/such")
