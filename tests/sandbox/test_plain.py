"""Lines that need no shell mean the same without one."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import SandboxFileError
from agentenv.sandbox import AsyncSandbox
from agentenv.sandbox.plain import plain_words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("true", ("true",)),
        ("ls -la /tmp", ("ls", "-la", "/tmp")),
        ("  python3  -m  pytest -q tests/test_x.py::test_y \n", ("python3", "-m", "pytest", "-q", "tests/test_x.py::test_y")),
        ("./configure --prefix=/usr", ("./configure", "--prefix=/usr")),
    ],
)
def test_plain_lines(line: str, words: tuple[str, ...]) -> None:
    assert plain_words(line) == words


@pytest.mark.parametrize(
    "line",
    ["", " ", "cd /tmp", "echo -e x", "A=1 env", "ls | wc", "ls; ls", "ls *", "cat ~/x", "echo $HOME", "ls\nls", "a\\ b", "ls 'x'",
    "x{1,2}", "! true", "ls #", "ls &", "exit 3", "[ a ]", "[[ a ]]", "time ls", "ls >x", "sleep\t1", "ls\0", "ls ü"],
)  # fmt: skip
def test_lines_for_the_shell(line: str) -> None:
    assert plain_words(line) is None


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@given(st.lists(st.text("ab=,:.@+-/_ 19", min_size=1, max_size=8), min_size=1, max_size=4))
def test_the_shell_sees_the_same_words(parts: list[str]) -> None:
    words = plain_words("/usr/bin/printf " + " ".join(parts))
    if words is not None:
        program = ["bash", "-c", f"for word in {' '.join(parts)}\ndo printf '%s\\n' \"$word\"; done"]
        assert subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines() == list(words[1:])


async def test_results_are_the_shells(sandbox: AsyncSandbox) -> None:
    assert (await sandbox.commands.run("true")).exit_code == 0
    assert (await sandbox.commands.run("false")).exit_code == 1
    assert (await sandbox.commands.run("basename /a/b.txt .txt")).stdout == "b\n"
    missing = await sandbox.commands.run("no-such-program --help")
    assert missing.exit_code == 127
    assert "no-such-program: command not found" in missing.stderr
    assert (await sandbox.commands.run("/etc")).exit_code == 126
    handle = await sandbox.commands.run("no-such-program", background=True)
    assert (await handle.wait()).exit_code == 127
    with pytest.raises(SandboxFileError, match="/no/such"):
        await sandbox.commands.run("true", cwd="/no/such")


async def test_a_script_without_an_interpreter_is_the_shells_to_run(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("/tmp/agentenv-plain-script", "echo from a script", mode=0o755)
    assert (await sandbox.commands.run("/tmp/agentenv-plain-script")).stdout == "from a script\n"
    await sandbox.files.remove("/tmp/agentenv-plain-script")
