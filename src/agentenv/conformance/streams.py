"""Checks of what flows: outputs, inputs, terminals, and that nobody starves anybody."""

from __future__ import annotations

import asyncio
import hashlib

from agentenv.conformance.subject import Subject
from agentenv.isolation.conformance import CheckFailed, check, expect, expect_equal
from agentenv.sandbox import AsyncCommandHandle

_MANY = 8_000_000
_QUICK = 20


@check("streams.apart")
async def apart(subject: Subject) -> None:
    """Standard output and standard error come apart, each in order, and live as they are printed."""
    commands = (await subject.sandbox()).commands
    line = "i=0; while [ $i -lt 200 ]; do echo out $i; echo err $i >&2; i=$((i + 1)); done"
    out: list[str] = []
    told = await commands.run(line, on_stdout=out.append)
    expect_equal("the output", told.stdout, "".join(f"out {number}\n" for number in range(200)))
    expect_equal("the errors", told.stderr, "".join(f"err {number}\n" for number in range(200)))
    expect_equal("what was told live", "".join(out), told.stdout)


@check("streams.large")
async def large(subject: Subject) -> None:
    """Megabytes of output come whole."""
    told = await (await subject.sandbox()).commands.run(f"yes 0123456789abcde | head -c {_MANY}")
    expect_equal("the output's digest", _digest(told.stdout.encode()), _digest(b"0123456789abcde\n" * (_MANY // 16)))


@check("streams.input")
async def given(subject: Subject) -> None:
    """Megabytes of input arrive whole, then the end; without any, the input is empty."""
    commands = (await subject.sandbox()).commands
    content = bytes(range(256)) * (_MANY // 512)
    told = await commands.run("sha256sum", stdin=content)
    expect_equal("the input's digest", told.stdout.split()[0], _digest(content))
    expect_equal("what a command without input reads", (await commands.run("cat | wc -c")).stdout.strip(), "0")


@check("streams.later-input")
async def later(subject: Subject) -> None:
    """A command in the background is written to line by line, and answers each."""
    handle = await (await subject.sandbox()).commands.run("while read line; do echo got $line; done; echo end", background=True, stdin=True)
    for word in ("one", "two"):
        await handle.send_stdin(f"{word}\n")
        await _until(handle, f"got {word}\n")
    await handle.close_stdin()
    expect_equal("all that it printed", (await handle.wait()).stdout, "got one\ngot two\nend\n")


@check("streams.fair")
async def fair(subject: Subject) -> None:
    """A command that prints without end, and whose reader has stopped, delays neither other commands nor files."""
    sandbox = await subject.sandbox()
    noisy = await sandbox.commands.run("yes all this is noise", background=True)
    async for _ in noisy:
        break  # and nobody reads on
    for number in range(_QUICK):
        expect_equal("what a quick command prints", (await sandbox.commands.run(f"echo {number}")).stdout, f"{number}\n")
    content = b"quiet" * 200_000
    await sandbox.files.write("/root/quiet", content)
    expect(await sandbox.files.read("/root/quiet", format="bytes") == content, "a file came back with another content.")
    expect(noisy.pid in [one.pid for one in await sandbox.commands.list()], "the noisy command has ended by itself.")
    await noisy.kill()


@check("streams.many")
async def many(subject: Subject) -> None:
    """Thirty commands at the same time each get their own output."""
    commands = (await subject.sandbox()).commands
    told = await asyncio.gather(*(commands.run(f"echo {number}; sleep 0.05; echo {number}") for number in range(30)))
    expect_equal("the outputs", [one.stdout for one in told], [f"{number}\n{number}\n" for number in range(30)])


@check("pty.size")
async def size(subject: Subject) -> None:
    """A program on a terminal sees one, in the size that it was made with, and in the new one after a resize."""
    sandbox = await subject.sandbox()
    await subject.require(sandbox, "stty")
    handle = await sandbox.pty.create((24, 80), cmd="test -t 0 && test -t 1 && stty size; read line; stty size; read line")
    await _until(handle, "24 80")
    await handle.resize(41, 132)
    await handle.send_stdin("\n")
    await _until(handle, "41 132")
    await handle.send_stdin("\n")
    expect_equal("the exit code", (await handle.wait()).exit_code, 0)


@check("pty.interrupt")
async def interrupt(subject: Subject) -> None:
    """Ctrl-C on a terminal ends what runs on it, and the shell of a terminal answers what is typed."""
    sandbox = await subject.sandbox()
    handle = await sandbox.pty.create(cmd="echo ready; exec sleep 1000")
    await _until(handle, "ready")
    await handle.send_stdin("\x03")
    expect_equal("the signal that ended it", (await handle.wait()).signal, 2)
    shell = await sandbox.pty.create()
    await shell.send_stdin("echo $((6 * 7))\n")
    await _until(shell, "42")
    await shell.send_stdin("exit 5\n")
    expect_equal("the exit code of the shell", (await shell.wait()).exit_code, 5)


async def _until(handle: AsyncCommandHandle, text: str) -> None:
    """Reads the handle's output, from what is kept of it, until the text is in it."""
    seen = ""
    async for piece in handle:
        seen += piece.stdout or (piece.pty or b"").decode(errors="replace")
        if text in seen:
            return
    raise CheckFailed(f"it ended without printing {text!r}; it printed {seen[-300:]!r}.")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


CHECKS = (apart, large, given, later, fair, many, size, interrupt)
