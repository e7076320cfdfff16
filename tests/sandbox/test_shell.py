"""The persistent shell: what stays, what is told apart, and everything that could confuse it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agentenv.errors import CommandError, CommandTimeout, InvalidState, SandboxFileError
from agentenv.sandbox import AsyncSandbox, AsyncShell


@pytest.fixture
async def shell(sandbox: AsyncSandbox) -> AsyncIterator[AsyncShell]:
    async with await sandbox.shell(cwd="/usr") as opened:
        yield opened


async def out(shell: AsyncShell, command: str) -> str:
    result = await shell.run(command)
    assert result.stderr == ""
    return result.stdout


async def test_state_stays(shell: AsyncShell) -> None:
    assert await out(shell, "pwd; A=1; declare -A M=([k]=v); f() { echo f$1; }; alias greet='echo hi'; cd /tmp") == "/usr\n"
    assert await out(shell, 'echo "$A ${M[k]}"; f 2; greet; pwd') == "1 v\nf2\nhi\n/tmp\n"
    assert await out(shell, "exec 7</dev/null; shopt -s nullglob; echo /no/such/*") == "\n"
    assert await out(shell, "shopt -q nullglob && ls -l /proc/self/fd/7 >/dev/null && echo still") == "still\n"


async def test_output_and_status_are_told_apart_exactly(shell: AsyncShell) -> None:
    result = await shell.run("printf 'no newline'; printf 'error' >&2; (exit 3)")
    assert (result.stdout, result.stderr, result.exit_code) == ("no newline", "error", 3)
    assert await out(shell, "echo $?") == "3\n"
    result = await shell.run("false")
    assert (result.stdout, result.stderr, result.exit_code) == ("", "", 1)
    with pytest.raises(CommandError, match="status 9"):
        await shell.run("return 9", check=True)


async def test_several_lines_comments_and_here_documents(shell: AsyncShell) -> None:
    assert await out(shell, "for i in 1 2; do\n  echo $i\ndone # a comment") == "1\n2\n"
    assert await out(shell, "cat <<END\nx $((1+1))\nEND") == "x 2\n"
    assert await out(shell, "") == ""
    assert await out(shell, "# nothing") == ""


@pytest.mark.parametrize("broken", ['echo "unterminated', "echo 'unterminated", "if true; then", "echo $(", ")", "cat <<'END", "done"])
async def test_a_syntax_error_is_a_result(shell: AsyncShell, broken: str) -> None:
    result = await shell.run(broken)
    assert result.exit_code != 0 or broken.startswith("cat")
    assert result.stderr
    assert not result.restarted
    assert await out(shell, "echo fine") == "fine\n"


async def test_commands_that_read_find_nothing(shell: AsyncShell) -> None:
    assert await out(shell, "cat; read line; echo got:$line; bash") == "got:\n"
    assert await out(shell, "echo next") == "next\n"


async def test_output_that_looks_like_the_protocol(shell: AsyncShell) -> None:
    tricks = ("declare -p | head -c 10000", r"tr '\0' '\n' </proc/$$/cmdline", r"printf '\002abc 0\n'", r"printf '\001\002\377\0'")
    result = await shell.run("; ".join(tricks))
    assert result.exit_code == 0
    assert result.stdout.endswith("\x01\x02\ufffd\x00")
    assert await out(shell, "echo clean") == "clean\n"


async def test_large_output_and_a_large_command(shell: AsyncShell) -> None:
    assert len(await out(shell, "head -c 3000000 /dev/zero | tr '\\0' x")) == 3_000_000
    word = "y" * 200_000
    assert await out(shell, f"x={word}; echo ${{#x}}") == "200000\n"


async def test_a_job_in_the_background_does_not_hold_the_command(shell: AsyncShell) -> None:
    assert await out(shell, "sleep 60 & echo started") == "started\n"
    assert await out(shell, "kill %1 && wait; echo gone") == "gone\n"
    await shell.run("(read x < /dev/null; echo late) & wait")
    assert await out(shell, "jobs") == ""


async def test_redirections_of_the_shell_itself_stay_and_do_not_lose_the_end(shell: AsyncShell) -> None:
    assert await out(shell, "exec 8>&1 >/tmp/shell-log.$$; echo hidden") == ""
    assert await out(shell, "echo hidden too") == ""
    assert await out(shell, "exec >&8 8>&-; cat /tmp/shell-log.$$") == "hidden\nhidden too\n"
    assert await out(shell, "exec 10>/dev/null 11>/dev/null 12>/dev/null; ls /proc/$$/fd >/dev/null; echo ok") == "ok\n"


async def test_options_that_would_break_a_naive_loop(shell: AsyncShell) -> None:
    result = await shell.run("set -x; echo traced")
    assert (result.stdout, result.stderr) == ("traced\n", "++ echo traced\n")
    assert (await shell.run("echo again")).stderr.endswith("echo again\n")
    assert (await shell.run("set +x")).stderr.endswith("set +x\n")
    assert await out(shell, "set -u; IFS=:; TMOUT=1; read() { :; }; printf() { :; }; echo set") == "set\n"
    assert await out(shell, "echo $((1+1))") == "2\n"
    assert (await shell.run("echo $undefined")).exit_code != 0


async def test_exit_is_a_result_and_the_next_command_has_a_fresh_shell(shell: AsyncShell) -> None:
    await shell.run("X=1; cd /tmp")
    result = await shell.run("echo bye; exit 7")
    assert (result.stdout, result.exit_code, result.restarted) == ("bye\n", 7, True)
    assert await out(shell, "echo ${X-unset}; pwd") == "unset\n/usr\n"


@pytest.mark.parametrize(("end", "status"), [("exec true", 0), ("set -e; false", 1), ("kill -9 $$", 137)], ids=["exec", "errexit", "kill"])
async def test_other_ways_to_end_the_shell(shell: AsyncShell, end: str, status: int) -> None:
    result = await shell.run(f"echo before; {end}; echo after")
    assert (result.stdout, result.exit_code, result.restarted) == ("before\n", status, True)
    assert await out(shell, "echo fresh") == "fresh\n"


@pytest.mark.parametrize(
    "command",
    [
        "sleep 60; echo after",
        "f() { g; echo f; }; g() { sleep 60; echo g; }; f; echo after",
        "while true; do :; done",
        "(sleep 60); echo after",
        "cat | sleep 60",
    ],
    ids=["list", "functions", "loop", "subshell", "pipe"],
)
async def test_a_time_out_interrupts_and_keeps_the_shell(shell: AsyncShell, command: str) -> None:
    await shell.run("X=kept; cd /tmp")
    with pytest.raises(CommandTimeout) as caught:
        await shell.run(f"echo before; {command}", timeout=0.3)
    assert (caught.value.kind, caught.value.stdout, caught.value.stderr, caught.value.restarted) == ("wall", "before\n", "", False)
    assert await out(shell, "echo $X; pwd") == "kept\n/tmp\n"


async def test_a_command_that_ignores_the_interrupt_takes_the_shell_with_it(shell: AsyncShell) -> None:
    with pytest.raises(CommandTimeout, match="restarted") as caught:
        await shell.run("X=lost; sh -c 'trap \"\" INT; echo deaf; while :; do sleep 60; done'", timeout=0.3)
    assert (caught.value.stdout, caught.value.restarted) == ("deaf\n", True)
    assert await out(shell, "echo ${X-unset}") == "unset\n"


async def test_silence_counts_from_the_last_output(shell: AsyncShell) -> None:
    result = await shell.run("for i in 1 2 3 4; do echo $i; sleep 0.1; done", idle_timeout=3, timeout=60)
    assert result.stdout == "1\n2\n3\n4\n"
    with pytest.raises(CommandTimeout) as caught:
        await shell.run("echo once; sleep 60", idle_timeout=0.3, timeout=60)
    assert (caught.value.kind, caught.value.stdout) == ("idle", "once\n")


async def test_callbacks(shell: AsyncShell) -> None:
    seen: list[str] = []

    async def err(text: str) -> None:
        await asyncio.sleep(0)
        seen.append(f"err:{text}")

    result = await shell.run(r"printf 'a\xe2'; sleep 0.05; printf '\x82\xac'; echo e >&2", on_stdout=seen.append, on_stderr=err)
    assert "".join(text for text in seen if not text.startswith("err")) == result.stdout == "a€"
    assert "err:e\n" in seen


async def test_a_callback_that_fails_leaves_the_shell_usable(shell: AsyncShell) -> None:
    def fail(text: str) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        await shell.run("X=kept; echo x; sleep 60", on_stdout=fail)
    assert await out(shell, "echo $X") == "kept\n"


async def test_a_cancelled_caller_leaves_the_shell_usable(shell: AsyncShell) -> None:
    running = asyncio.create_task(shell.run("X=kept; sleep 60"))
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await out(shell, "echo $X") == "kept\n"


async def test_commands_wait_their_turn(shell: AsyncShell) -> None:
    results = await asyncio.gather(*(shell.run(f"echo {number}; cd /") for number in range(20)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(20)]


async def test_shells_do_not_share_state(sandbox: AsyncSandbox) -> None:
    async with await sandbox.shell(envs={"A": "1"}) as one, await sandbox.shell(envs={"A": "2"}) as two:
        await one.run("cd /usr")
        assert await out(one, "echo $A; pwd") == "1\n/usr\n"
        assert (await out(two, "echo $A; pwd")).startswith("2\n")
        assert await out(two, "pwd") != "/usr\n"


async def test_what_is_no_command_and_no_directory(sandbox: AsyncSandbox, shell: AsyncShell) -> None:
    with pytest.raises(ValueError, match="NUL"):
        await shell.run("echo \0")
    with pytest.raises(SandboxFileError, match="/no/such"):
        await sandbox.shell(cwd="/no/such")


async def test_closing_ends_what_it_left(sandbox: AsyncSandbox) -> None:
    shell = await sandbox.shell()
    await shell.run("sleep 60 &")
    await shell.close()
    await shell.close()
    with pytest.raises(InvalidState, match="closed"):
        await shell.run("true")
    while await sandbox.commands.list():
        pass
