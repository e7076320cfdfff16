"""Checks of commands: how they end, what they are given, how they are stopped."""

from __future__ import annotations

import os

from agentenv.conformance.subject import Subject
from agentenv.errors import CommandError, CommandTimeout, SandboxFileError
from agentenv.isolation.conformance import check, expect, expect_equal, expect_refusal

_ODD = ["two words", "", "'quotes\"", "$HOME `id` \\n", "été", "*", "line\nbreak"]
_HOST_ONLY = "AGENTENV_CONFORMANCE_SECRET"


@check("exec.exit-codes")
async def exit_codes(subject: Subject) -> None:
    """A command's exit code comes back, whichever it is; with `check` one that is not 0 is a `CommandError`."""
    commands = (await subject.sandbox()).commands
    for code in (0, 1, 3, 127, 255):
        expect_equal(f"the exit code of `exit {code}`", (await commands.run(f"exit {code}")).exit_code, code)
    with expect_refusal("`check=True` with exit code 7", CommandError):
        await commands.run("exit 7", check=True)


@check("exec.signals")
async def signals(subject: Subject) -> None:
    """A command that a signal ends says which, and its exit code is 128 and the signal; a signal that is sent arrives."""
    commands = (await subject.sandbox()).commands
    for number in (9, 15):
        ended = await commands.run(f"kill -{number} $$")
        expect_equal("signal and exit code", (ended.signal, ended.exit_code), (number, 128 + number))
    handle = await commands.run("trap 'echo caught; exit 4' USR1; echo ready; while :; do sleep 0.01; done", background=True)
    async for piece in handle:
        if "ready" in (piece.stdout or ""):
            break
    await handle.send_signal(10)
    caught = await handle.wait()
    expect_equal("exit code and output of a command that catches a signal", (caught.exit_code, caught.stdout), (4, "ready\ncaught\n"))


@check("exec.environment")
async def environment(subject: Subject) -> None:
    """A command has the sandbox's variables and its own over them, and none of this process's."""
    os.environ[_HOST_ONLY] = "secret"
    try:
        sandbox = await subject.create(env={"FIRST": "of the sandbox", "SECOND": "of the sandbox"})
        told = await sandbox.commands.run(f'echo "$FIRST,$SECOND,${{{_HOST_ONLY}-none}}"', envs={"SECOND": "of the command"})
    finally:
        del os.environ[_HOST_ONLY]
    expect_equal("what the command sees", told.stdout, "of the sandbox,of the command,none\n")


@check("exec.arguments")
async def arguments(subject: Subject) -> None:
    """A command given as a sequence gets its arguments as they are, whatever characters they hold."""
    commands = (await subject.sandbox()).commands
    told = await commands.run(["sh", "-c", 'printf "<%s>" "$@"', "sh", *_ODD])
    expect_equal("the arguments", told.stdout, "".join(f"<{word}>" for word in _ODD))


@check("exec.directory")
async def directory(subject: Subject) -> None:
    """A command runs in the directory that it was given; one that does not exist is named."""
    commands = (await subject.sandbox()).commands
    expect_equal("the directory", (await commands.run("pwd", cwd="/tmp")).stdout, "/tmp\n")
    with expect_refusal("a directory that does not exist", SandboxFileError) as caught:
        await commands.run("pwd", cwd="/no/such/place")
    expect("/no/such/place" in str(caught[0]), f"the error does not name the directory: {caught[0]}")


@check("exec.missing-program")
async def missing_program(subject: Subject) -> None:
    """A program that does not exist is 127 from a shell, and a `SandboxFileError` by itself."""
    commands = (await subject.sandbox()).commands
    expect_equal("the exit code", (await commands.run("no-such-program-here --option")).exit_code, 127)
    with expect_refusal("a program that does not exist", SandboxFileError):
        await commands.run(["no-such-program-here"])


@check("exec.user", needs=("users",))
async def user(subject: Subject) -> None:
    """A command runs as the user that it was given, owns what it makes, and cannot read what is root's alone."""
    sandbox = await subject.sandbox()
    await sandbox.files.write("/root/secret", "x", mode=0o600)
    told = await sandbox.commands.run("id -u; cat /root/secret; touch /tmp/mine && stat -c %u /tmp/mine", user=1000, cwd="/")
    expect_equal("what user 1000 gets to see", told.stdout, "1000\n1000\n")
    expect_equal("who is asked for by default", (await sandbox.commands.run("id -u")).stdout, "0\n")


@check("exec.timeout")
async def timeout(subject: Subject) -> None:
    """A command that runs too long is ended with all that it started, and what it had printed is kept."""
    commands = (await subject.sandbox()).commands
    for title, limits in (("timeout", {"timeout": 1.0}), ("idle_timeout", {"idle_timeout": 1.0})):
        with expect_refusal(f"a command beyond its `{title}`", CommandTimeout) as caught:
            await commands.run("echo before; echo error >&2; sleep 1000 & sleep 1000", **limits)  # type: ignore[call-overload]
        error = caught[0]
        assert isinstance(error, CommandTimeout)
        expect_equal("what it had printed", (error.stdout, error.stderr), ("before\n", "error\n"))
        expect_equal("the commands that are left", await commands.list(), [])


@check("exec.background")
async def background(subject: Subject) -> None:
    """A command in the background is listed, found again by its number, and killed with its group."""
    commands = (await subject.sandbox()).commands
    handle = await commands.run("echo begun; sleep 1000 & wait", background=True, tag="mine")
    (listed,) = await commands.list()
    expect_equal("number and tag in the list", (listed.pid, listed.tag), (handle.pid, "mine"))
    again = await commands.connect(handle.pid)
    expect(await commands.kill(handle.pid), "`kill` says that there is no such command.")
    expect_equal("how it ended", (await again.wait()).signal, 9)
    expect_equal("what a second `kill` says", await commands.kill(handle.pid), False)


CHECKS = (exit_codes, signals, environment, arguments, directory, missing_program, user, timeout, background)
